//! Usage as FOCUS 1.3, the FinOps Open Cost and Usage Specification (<https://focus.finops.org>): a GPU of a day is the origin, and
//! each run's share of it, or what nobody had, is an allocated charge. The ratios of one origin add up to 1.

use std::collections::BTreeMap;

use cantle_clearml::usage::{PriceSheet, Usage, UsageKey, UsageKind, UsageLine};
use jiff::civil::Date;
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan as _};
use serde_json::json;

use super::HOUR;
use crate::error::{CliError, ErrorKind};

/// The keys that lines must have.
pub(super) const BY: [UsageKey; 8] = [
    UsageKey::Day,
    UsageKey::Gpu,
    UsageKey::Node,
    UsageKey::Model,
    UsageKey::Project,
    UsageKey::User,
    UsageKey::Queue,
    UsageKey::Task,
];

/// The provider of the GPUs, which issues no invoice.
const PROVIDER: &str = "cantle";
const UNIT: &str = "GPU-Hours";

/// The columns that are the same for every charge.
const SAME: [(&str, &str); 22] = [
    ("AllocatedMethodId", "cantle-share"),
    ("BillingAccountId", PROVIDER),
    ("BillingAccountName", PROVIDER),
    ("BillingAccountType", "Server"),
    ("ChargeCategory", "Usage"),
    ("ChargeClass", ""),
    ("ChargeFrequency", "Usage-Based"),
    ("ConsumedUnit", UNIT),
    ("HostProviderName", PROVIDER),
    ("InvoiceIssuerName", PROVIDER),
    ("PricingCategory", "Standard"),
    ("PricingUnit", UNIT),
    ("ProviderName", PROVIDER),
    ("PublisherName", PROVIDER),
    ("ResourceType", "GPU"),
    ("ServiceCategory", "Compute"),
    ("ServiceName", "GPU"),
    ("ServiceProviderName", PROVIDER),
    ("ServiceSubcategory", "Other (Compute)"),
    ("SkuMeter", "GPU share"),
    ("SubAccountType", "Project"),
    ("Tags", "{}"),
];

/// One charge: a column's name and its value.
type Charge = Vec<(&'static str, String)>;

/// The charges of lines that are by [`BY`].
///
/// # Errors
/// No price sheet, or a GPU without a price: a charge without a cost is none.
pub(super) fn charges(usage: &Usage) -> Result<Vec<Charge>, CliError> {
    let Some(sheet) = &usage.prices else {
        let text = "-o focus has costs: it needs --prices FILE, or a server with a price sheet (cantle server --prices FILE)";
        return Err(CliError::new(ErrorKind::Usage, text));
    };
    let mut origins: BTreeMap<(&str, &str), f64> = BTreeMap::new();
    // Runs without a GPU have no cost.
    let lines = || usage.lines.iter().filter(|line| !line.keys[1].is_empty() && line.gpu_seconds > 0.0);
    for line in lines() {
        *origins.entry((&line.keys[0], &line.keys[1])).or_default() += line.gpu_seconds;
    }
    let charge = |line: &UsageLine| charge(usage, sheet, line, origins[&(&*line.keys[0], &*line.keys[1])]);
    lines().map(charge).collect()
}

fn charge(usage: &Usage, sheet: &PriceSheet, line: &UsageLine, origin: f64) -> Result<Charge, CliError> {
    let [day, gpu, node, model, project, user, queue, task] = <[String; 8]>::try_from(line.keys.clone())
        .map_err(|_| CliError::new(ErrorKind::Failed, "the server's lines have other keys"))?;
    let Some(cost) = line.cost else {
        let text = format!(
            "the price sheet has no price for {model} on all of {day}; -o focus needs one for each GPU"
        );
        return Err(CliError::new(ErrorKind::Usage, text));
    };
    let [day_from, day_to, month_from, month_to] = periods(&day)
        .ok_or_else(|| CliError::new(ErrorKind::Failed, format!("the server names the day \"{day}\"")))?;
    let (from, to) = (later(&usage.from, day_from), earlier(&usage.to, day_to));
    let hours = line.gpu_seconds / HOUR;
    let number = |value: f64| value.to_string();
    let unit_price = number(cost / hours);
    let tags = json!({"cantle/project": project, "cantle/queue": queue, "cantle/user": user}).to_string();
    let method = json!({"Elements": [
        {"AllocatedRatio": line.gpu_seconds / origin, "UsageUnit": UNIT, "UsageQuantity": hours},
    ]});
    let name = line.name.clone().unwrap_or_default();
    let (what, allocated) = match line.kind {
        UsageKind::Allocated => (format!("GPU time of task {name}"), task),
        other => (format!("GPU time that nobody had ({})", other.word()), format!("({})", other.word())),
    };
    let or_none = |text: String| if text.is_empty() { "(none)".to_owned() } else { text };
    let project = or_none(project);
    let mut charge = vec![
        ("AllocatedMethodDetails", method.to_string()),
        ("AllocatedResourceId", allocated),
        ("AllocatedResourceName", name),
        ("AllocatedTags", tags),
        ("BilledCost", number(cost)),
        ("BillingCurrency", sheet.currency.clone()),
        ("BillingPeriodEnd", month_to.to_string()),
        ("BillingPeriodStart", month_from.to_string()),
        ("ChargeDescription", what),
        ("ChargePeriodEnd", to.to_string()),
        ("ChargePeriodStart", from.to_string()),
        ("ConsumedQuantity", number(hours)),
        ("ContractedCost", number(cost)),
        ("ContractedUnitPrice", unit_price.clone()),
        ("EffectiveCost", number(cost)),
        ("ListCost", number(cost)),
        ("ListUnitPrice", unit_price),
        ("PricingCurrency", sheet.currency.clone()),
        ("PricingQuantity", number(hours)),
        ("ResourceId", gpu),
        ("ResourceName", node),
        ("SkuId", model.clone()),
        ("SkuPriceId", model),
        ("SubAccountId", project.clone()),
        ("SubAccountName", project),
    ];
    charge.extend(SAME.map(|(name, value)| (name, value.to_owned())));
    charge.sort_unstable();
    Ok(charge)
}

/// The day and its month in UTC, as moments.
fn periods(day: &str) -> Option<[Timestamp; 4]> {
    let day: Date = day.parse().ok()?;
    let month = day.first_of_month();
    let edges = [day, day.checked_add(1.day()).ok()?, month, month.checked_add(1.month()).ok()?];
    let moment = |date: Date| Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp());
    Some([moment(edges[0])?, moment(edges[1])?, moment(edges[2])?, moment(edges[3])?])
}

fn later(text: &str, than: Timestamp) -> Timestamp {
    text.parse().map_or(than, |moment: Timestamp| moment.max(than))
}

fn earlier(text: &str, than: Timestamp) -> Timestamp {
    text.parse().map_or(than, |moment: Timestamp| moment.min(than))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(kind: UsageKind, task: &str, gpu_seconds: f64, cost: Option<f64>) -> UsageLine {
        let keys =
            ["2026-11-30", "GPU-1", "box", "A100", if task.is_empty() { "" } else { "vision" }, "", "", task];
        let keys = keys.map(str::to_owned).to_vec();
        UsageLine { kind, keys, gpu_seconds, cost, ..UsageLine::default() }
    }

    fn value<'a>(charge: &'a Charge, column: &str) -> &'a str {
        &charge.iter().find(|(name, _)| *name == column).unwrap().1
    }

    fn usage(lines: Vec<UsageLine>) -> Usage {
        let (from, to) = ("2026-11-30T06:00:00Z".to_owned(), "2026-12-02T00:00:00Z".to_owned());
        let prices = Some(PriceSheet { currency: "EUR".into(), prices: Vec::new() });
        Usage { from, to, lines, prices, ..Usage::default() }
    }

    #[test]
    fn the_parts_of_a_gpu_are_the_gpu() {
        let lines = vec![
            line(UsageKind::Allocated, "t1", 3600.0, Some(2.0)),
            line(UsageKind::Allocated, "t2", 7200.0, Some(4.0)),
            line(UsageKind::Free, "", 54_000.0, Some(30.0)),
        ];
        let charges = charges(&usage(lines)).unwrap();
        let ratio = |charge: &Charge| {
            let details: serde_json::Value =
                serde_json::from_str(value(charge, "AllocatedMethodDetails")).unwrap();
            details["Elements"][0]["AllocatedRatio"].as_f64().unwrap()
        };
        assert!((charges.iter().map(ratio).sum::<f64>() - 1.0).abs() < 1e-12);
        let sum =
            |column| charges.iter().map(|charge| value(charge, column).parse::<f64>().unwrap()).sum::<f64>();
        assert_eq!([sum("BilledCost"), sum("ConsumedQuantity"), sum("EffectiveCost")], [36.0, 18.0, 36.0]);
        let of_day = ["ChargePeriodStart", "ChargePeriodEnd", "BillingPeriodStart", "BillingPeriodEnd"];
        assert_eq!(
            of_day.map(|column| value(&charges[0], column)),
            ["2026-11-30T06:00:00Z", "2026-12-01T00:00:00Z", "2026-11-01T00:00:00Z", "2026-12-01T00:00:00Z"]
        );
        for column in ["ListUnitPrice", "ContractedUnitPrice", "SkuPriceId", "ResourceId", "BillingCurrency"]
        {
            assert!(
                charges.iter().all(|charge| value(charge, column) == value(&charges[0], column)),
                "{column}"
            );
        }
        assert_eq!(value(&charges[2], "AllocatedResourceId"), "(free)");
    }

    #[test]
    fn a_gpu_without_a_price_is_refused() {
        let unpriced = usage(vec![line(UsageKind::Free, "", 1.0, None)]);
        let error = charges(&unpriced).unwrap_err().to_string();
        assert!(error.contains("no price for A100 on all of 2026-11-30"), "{error}");
        let error = charges(&Usage { prices: None, ..unpriced }).unwrap_err().to_string();
        assert!(error.contains("it needs --prices FILE, or a server with a price sheet"), "{error}");
    }
}
