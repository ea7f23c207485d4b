//! `get_usages` of ClearML's metering service, called as its documentation does, and the price sheet of a server.

use cantle_clearml::metering::MeteredUsage;
use cantle_clearml::usage::{PriceEntry, PriceSheet};
use cantle_server::{CredentialsFile, ServerConfig};
use cantle_store::DAY_US;
use serde_json::{Value, json};

use crate::common::TestServer;
use crate::usage_days::{fill, usage};

struct Metered {
    server: TestServer,
    /// The first day with runs.
    first: i64,
    /// This day and the third one.
    days: [String; 2],
    keys: [String; 2],
}

impl Metered {
    /// A server with the runs of [`fill`]. The GPUs cost twice as much from the third day on, if they cost something.
    async fn start(is_priced: bool) -> Self {
        let first = jiff::Timestamp::now().as_microsecond().div_euclid(DAY_US) - 12;
        let moment = |day: i64| jiff::Timestamp::from_microsecond(day * DAY_US).unwrap();
        let changes = Some(moment(first + 2).to_string());
        let before = PriceEntry { model: "A100".into(), gpu_hour: 1.0, from: None, to: changes.clone() };
        let after = PriceEntry { gpu_hour: 2.0, from: changes, to: None, ..before.clone() };
        let sheet = PriceSheet { currency: "EUR".into(), prices: vec![before, after] };
        let config = ServerConfig { prices: is_priced.then_some(sheet), ..ServerConfig::default() };
        let server = TestServer::start_with(tempfile::tempdir().unwrap(), config).await;
        let (queue, store) = (server.queue("q").await, server.store().await);
        let project = server.client.call_value("projects.create", &json!({"name": "vision"})).await.unwrap();
        fill(&store, project["id"].as_str().unwrap(), &queue, first).await;
        let keys = CredentialsFile::read(server.dir.path()).unwrap().unwrap();
        let days = [first, first + 2].map(|day| moment(day).strftime("%Y-%m-%d").to_string());
        Self { server, first, days, keys: [keys.access_key, keys.secret_key] }
    }

    async fn ask_as(&self, [access_key, secret_key]: &[String; 2], body: &Value) -> (u16, String) {
        let request = reqwest::Client::new().post(format!("{}/get_usages", self.server.client.url()));
        let request = request.basic_auth(access_key, Some(secret_key)).body(body.to_string());
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    async fn ask(&self, body: &Value) -> (u16, String) {
        self.ask_as(&self.keys, body).await
    }
}

#[tokio::test]
async fn each_day_has_its_use_and_its_cost() {
    let metered = Metered::start(true).await;
    let [one, third] = &metered.days;
    let body = json!({"tenant": "cantle", "from_date": one, "to_date": third, "categories": ["compute"]});
    let (status, text) = metered.ask(&body).await;
    assert_eq!(status, 200, "{text}");
    let answer: MeteredUsage = serde_json::from_str(&text).unwrap();
    let [tenant] = answer.tenants.as_slice() else { panic!("{text}") };
    let compute = &tenant.categories["compute"];
    assert_eq!((tenant.currency.as_str(), compute.dates.len(), compute.free), ("EUR", 3, false));
    assert_eq!([&compute.dates[0], &compute.dates[2]], [one, third]);

    // The shares of the runs times their hours on each day.
    let hours =
        [0.25 * 3.0 + 0.3 * 4.0, 0.3 * 24.0 + 0.7 * 18.0 + 0.125 * 17.0, 0.3 * 2.0 + (0.7 + 0.125) * 24.0];
    for (seconds, hours) in compute.values.usages.iter().zip(hours) {
        assert!((seconds / 3600.0 - hours).abs() < 1e-6, "{:?} {hours}", compute.values.usages);
    }
    let cost = hours[0] + hours[1] + 2.0 * hours[2];
    assert!((tenant.total_cost - cost).abs() < 1e-4, "{} {cost}", tenant.total_cost);
    let label = &compute.labels.as_ref().unwrap()["A100"];
    assert_eq!(label.pricing.map(|price| (price.price, price.units)), Some((2.0, 3600.0)));
    assert_eq!(label.values, compute.values);

    // Every other report has the same prices, if it brings none.
    let span = (metered.first * DAY_US, (metered.first + 3) * DAY_US);
    let report = usage(&metered.server, span, &["project"]).await;
    assert_eq!(report.prices.as_ref().map(|sheet| sheet.currency.as_str()), Some("EUR"));
    let costs: f64 = report.lines.iter().filter(|line| line.runs > 0).map(|line| line.cost.unwrap()).sum();
    assert!((costs - cost).abs() < 1e-4, "{report:?}");
}

#[tokio::test]
async fn without_prices_use_is_free() {
    let metered = Metered::start(false).await;
    let [one, third] = &metered.days;
    let (_, text) = metered.ask(&json!({"from_date": one, "to_date": third, "include_labels": false})).await;
    let answer: Value = serde_json::from_str(&text).unwrap();
    let compute = &answer["tenants"][0]["categories"]["compute"];
    assert_eq!((&compute["free"], &compute["total_cost"]), (&json!(true), &json!(0.0)));
    assert!(compute["total_usage"].as_f64().unwrap() > 0.0 && compute.get("labels").is_none(), "{text}");
    let span = (metered.first * DAY_US, (metered.first + 3) * DAY_US);
    let report = usage(&metered.server, span, &["project"]).await;
    assert!(report.prices.is_none() && report.lines.iter().all(|line| line.cost.is_none()));
}

#[tokio::test]
async fn a_wrong_question_is_named_and_only_administrators_ask() {
    let metered = Metered::start(false).await;
    let [one, third] = &metered.days;
    for (body, why) in [
        (json!({"from_date": third, "to_date": one}), "to_date is the same day or a later one"),
        (json!({"from_date": "May", "to_date": one}), "from_date is \"May\"; it is a day like 2026-11-01"),
        (
            json!({"from_date": one, "to_date": third, "categories": ["storage"]}),
            "there is no category \"storage\"; this server meters \"compute\"",
        ),
        (json!({"from_date": one, "to_date": third, "tenant": "acme"}), "there is no tenant \"acme\""),
    ] {
        let (status, text) = metered.ask(&body).await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(status == 400 && answer["error"].as_str().unwrap().contains(why), "{text}");
    }
    let body = json!({"from_date": one, "to_date": third});
    assert_eq!(metered.ask_as(&["NOBODY".into(), "KNOWS".into()], &body).await.0, 401);
    let new = json!({"name": "ann", "role": "member", "project": "vision"});
    let ann = metered.server.client.call_value("cantle.add_user", &new).await.unwrap();
    let keys = ["access_key", "secret_key"].map(|name| ann[name].as_str().unwrap().to_owned());
    assert_eq!(metered.ask_as(&keys, &body).await.0, 403);
}
