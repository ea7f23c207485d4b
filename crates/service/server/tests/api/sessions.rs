//! Logins in browsers: they can be listed and ended, and an ended one is refused.

use cantle_clearml::Credentials;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::common::TestServer;

/// A browser that logged in.
struct Browser {
    cookie: String,
    csrf: String,
}

impl Browser {
    async fn log_in(server: &TestServer, keys: &Credentials, name: &str) -> Self {
        let body = json!({ "access_key": keys.access_key, "secret_key": keys.secret_key });
        let request = reqwest::Client::new().post(format!("{}/ui/-/session", server.client.url()));
        let answer = request.header("User-Agent", name).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        let cookie = answer.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
        let csrf = answer.json::<Value>().await.unwrap()["csrf"].as_str().unwrap().to_owned();
        Self { cookie, csrf }
    }

    fn token(&self) -> &str {
        self.cookie.split_once('=').unwrap().1
    }

    async fn is_in(&self, server: &TestServer) -> bool {
        let url = format!("{}/ui/-/session", server.client.url());
        let answer = reqwest::Client::new().get(url).header("Cookie", &self.cookie).send().await.unwrap();
        answer.status() == StatusCode::OK
    }

    /// A call as the page makes it: status and data, or the message.
    async fn call(&self, server: &TestServer, endpoint: &str, body: Value) -> (u16, Value) {
        let url = format!("{}/ui/-/call/{endpoint}", server.client.url());
        let request = reqwest::Client::new().post(url).header("Cookie", &self.cookie);
        answer(request.header("X-CSRF-Token", &self.csrf).json(&body)).await
    }
}

async fn answer(request: reqwest::RequestBuilder) -> (u16, Value) {
    let answer = request.send().await.unwrap();
    let code = answer.status().as_u16();
    let mut envelope: Value = answer.json().await.unwrap();
    (code, if code == 200 { envelope["data"].take() } else { envelope["meta"]["result_msg"].take() })
}

async fn with_token(server: &TestServer, token: &str, endpoint: &str) -> (u16, Value) {
    let url = format!("{}/{endpoint}", server.client.url());
    answer(reqwest::Client::new().post(url).bearer_auth(token).body("{}")).await
}

async fn add_user(server: &TestServer, name: &str) -> Credentials {
    let made = server.client.call_value("cantle.add_user", &json!({ "name": name, "role": "member" })).await;
    let made = made.unwrap();
    let text = |field: &str| made[field].as_str().unwrap().to_owned();
    Credentials { access_key: text("access_key"), secret_key: text("secret_key") }
}

fn clients(listed: &Value) -> Vec<&str> {
    let sessions = listed["sessions"].as_array().unwrap().iter();
    sessions.map(|session| session["client"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_session_ends_for_every_copy_of_its_cookie_and_every_token_made_with_it() {
    let server = TestServer::start().await;
    let anna = add_user(&server, "anna").await;
    let laptop = Browser::log_in(&server, &anna, "laptop").await;
    let desk = Browser::log_in(&server, &anna, "desk").await;
    // A thief of the cookie may have made another token with it.
    let (code, made) = with_token(&server, laptop.token(), "auth.login").await;
    assert_eq!(code, 200);
    let copy = made["token"].as_str().unwrap().to_owned();
    assert_eq!(with_token(&server, &copy, "users.get_current_user").await.0, 200);

    let (_, listed) = desk.call(&server, "cantle.get_sessions", json!({})).await;
    assert_eq!(clients(&listed), ["laptop", "desk"]);
    let own: Vec<_> =
        listed["sessions"].as_array().unwrap().iter().map(|session| session["is_own"] == true).collect();
    assert_eq!(own, [false, true]);
    let id = listed["sessions"][0]["id"].clone();
    let (code, ended) = desk.call(&server, "cantle.end_sessions", json!({ "session": id })).await;
    assert_eq!((code, ended), (200, json!({ "ended": 1 })));

    assert!(!laptop.is_in(&server).await && desk.is_in(&server).await);
    for token in [laptop.token(), &copy] {
        let (code, text) = with_token(&server, token, "users.get_current_user").await;
        assert!(code == 401 && text.as_str().unwrap().contains("was ended; log in again"), "{code} {text}");
    }
    let (_, listed) = desk.call(&server, "cantle.get_sessions", json!({})).await;
    assert_eq!(clients(&listed), ["desk"]);

    // It stays ended when the server starts again, and the others stay.
    let server = server.restart().await;
    assert!(!laptop.is_in(&server).await && desk.is_in(&server).await);
}

#[tokio::test]
async fn to_log_out_ends_the_session_and_not_the_cookie_alone() {
    let server = TestServer::start().await;
    let anna = add_user(&server, "anna").await;
    let browser = Browser::log_in(&server, &anna, "laptop").await;
    let url = format!("{}/ui/-/session", server.client.url());
    let request = reqwest::Client::new().delete(url).header("Cookie", &browser.cookie);
    let answer = request.header("X-CSRF-Token", &browser.csrf).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert!(!browser.is_in(&server).await);
}

#[tokio::test]
async fn who_may_list_and_end_what() {
    let server = TestServer::start().await;
    let (anna, ben) = (add_user(&server, "anna").await, add_user(&server, "ben").await);
    let annas = Browser::log_in(&server, &anna, "of anna").await;
    let bens = Browser::log_in(&server, &ben, "of ben").await;
    let (_, listed) = annas.call(&server, "cantle.get_sessions", json!({})).await;
    let id = listed["sessions"][0]["id"].clone();

    for body in [json!({ "user": "anna" }), json!({ "all": true })] {
        let (code, text) = bens.call(&server, "cantle.get_sessions", body).await;
        assert!(code == 403 && text.as_str().unwrap().contains("administer"), "{code} {text}");
    }
    assert_eq!(bens.call(&server, "cantle.end_sessions", json!({ "user": "anna" })).await.0, 403);
    // An id that is foreign is answered as one that does not exist.
    let (code, theirs) = bens.call(&server, "cantle.end_sessions", json!({ "session": id })).await;
    assert_eq!(code, 400);
    let (_, nothing) = bens.call(&server, "cantle.end_sessions", json!({ "session": "0" })).await;
    let without = |text: &Value, id: &str| text.as_str().unwrap().replace(id, "…");
    assert_eq!(without(&theirs, id.as_str().unwrap()), without(&nothing, " 0 is").replace('…', " … is"));
    assert!(annas.is_in(&server).await);
    for body in [json!({}), json!({ "session": id, "user": "anna" })] {
        let (code, text) = annas.call(&server, "cantle.end_sessions", body).await;
        assert!(code == 400 && text.as_str().unwrap().contains("name one session"), "{code} {text}");
    }

    let all = server.client.call_value("cantle.get_sessions", &json!({ "all": true })).await.unwrap();
    assert_eq!(clients(&all), ["of anna", "of ben"]);
    let ended = server.client.call_value("cantle.end_sessions", &json!({ "user": "ben" })).await.unwrap();
    assert_eq!(ended, json!({ "ended": 1 }));
    assert!(annas.is_in(&server).await && !bens.is_in(&server).await);
    let asked = json!({ "action": "cantle.end_sessions" });
    let audit = server.client.call_value("cantle.get_audit", &asked).await.unwrap()["records"].take();
    let about: Vec<_> = audit.as_array().unwrap().iter().map(|row| (&row["subject"], &row["user"])).collect();
    assert!(about.contains(&(&json!("ben"), &json!("admin"))), "{audit}");
}

#[tokio::test]
async fn sessions_end_with_their_key_and_with_their_user() {
    let server = TestServer::start().await;
    let (anna, ben) = (add_user(&server, "anna").await, add_user(&server, "ben").await);
    let annas = Browser::log_in(&server, &anna, "of anna").await;
    let bens = Browser::log_in(&server, &ben, "of ben").await;
    server.client.call_value("cantle.revoke_key", &json!({ "access_key": anna.access_key })).await.unwrap();
    server.client.call_value("cantle.remove_user", &json!({ "user": "ben" })).await.unwrap();
    assert!(!annas.is_in(&server).await && !bens.is_in(&server).await);
    let all = server.client.call_value("cantle.get_sessions", &json!({ "all": true })).await.unwrap();
    assert_eq!(clients(&all), Vec::<&str>::new());
    // A user who comes back has to log in again.
    add_user(&server, "ben").await;
    assert!(!bens.is_in(&server).await);
}

#[tokio::test]
async fn the_login_of_a_program_is_in_the_audit_once_in_an_hour() {
    let server = TestServer::start().await;
    for _ in 0..3 {
        server.another_client().call_value("users.get_current_user", &json!({})).await.unwrap();
        assert_eq!(server.raw("auth.login", "{}").await.0, 200);
    }
    let asked = json!({ "action": "login" });
    let audit = server.client.call_value("cantle.get_audit", &asked).await.unwrap()["records"].take();
    assert_eq!(audit.as_array().unwrap().len(), 1, "{audit}");
}
