//! `get_usages` of ClearML's Usage Aggregator, the metering service of ClearML Enterprise: use and cost by day, for programs that bill.
//! <https://clear.ml/docs/latest/docs/deploying_clearml/enterprise_deploy/extra_configs/event_metering>

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::wire::{endpoint, one_or_many};

/// `get_usages`: what was used between two days, both of them included, in UTC.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct GetUsages {
    /// The tenant; absent: all of them.
    pub tenant: Option<String>,
    /// The first day, as YYYY-MM-DD.
    pub from_date: String,
    /// The last day, as YYYY-MM-DD.
    pub to_date: String,
    /// The categories; empty: all of them.
    #[serde(deserialize_with = "one_or_many")]
    pub categories: Vec<String>,
    /// Whether each category has its labels.
    pub include_labels: bool,
}
endpoint!("get_usages", GetUsages => MeteredUsage);

impl Default for GetUsages {
    fn default() -> Self {
        let (from_date, to_date) = (String::new(), String::new());
        Self { tenant: None, from_date, to_date, categories: Vec::new(), include_labels: true }
    }
}

/// Answer of `get_usages`. It has no envelope.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredUsage {
    /// The tenants.
    pub tenants: Vec<MeteredTenant>,
}

/// The use of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredTenant {
    /// The currency of all costs, an ISO 4217 code.
    pub currency: String,
    /// Id of the tenant.
    pub tenant: String,
    /// The cost of all categories.
    pub total_cost: f64,
    /// By name.
    pub categories: BTreeMap<String, MeteredCategory>,
}

/// One kind of use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredCategory {
    /// By which ClearML's page draws it.
    #[serde(rename = "type")]
    pub kind: String,
    /// Its name for people.
    pub display_name: String,
    /// It has no price.
    pub free: bool,
    /// How the value of a day is made of reports: `sum` or `max`.
    pub count_strategy: String,
    /// The unit of the values.
    pub unit_name: String,
    /// How the value of all days is made of those of the days: `total` or `latest`.
    pub total_usage_type: String,
    /// The days, as YYYY-MM-DD.
    pub dates: Vec<String>,
    /// The values, the cost and the sums of them.
    #[serde(flatten)]
    pub values: MeteredValues,
    /// The parts of the category, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub labels: Option<BTreeMap<String, MeteredLabel>>,
}

/// A part of a category.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredLabel {
    /// Its name for people.
    pub display_name: String,
    /// The price at the end of the time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pricing: Option<MeteredPrice>,
    /// The values, the cost and the sums of them.
    #[serde(flatten)]
    pub values: MeteredValues,
}

/// A price and the number of units that it is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredPrice {
    /// In the currency of the tenant.
    pub price: f64,
    /// In the unit of the category.
    pub units: f64,
}

/// The values of each day, and their sums.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MeteredValues {
    /// In the unit of the category, by day.
    pub usages: Vec<f64>,
    /// By day.
    pub costs: Vec<f64>,
    /// The sum of the usages.
    pub total_usage: f64,
    /// The sum of the costs.
    pub total_cost: f64,
}

impl MeteredValues {
    /// No use on any of these days.
    #[must_use]
    pub fn of_days(days: usize) -> Self {
        Self { usages: vec![0.0; days], costs: vec![0.0; days], ..Self::default() }
    }

    /// Adds use of one day.
    pub fn add(&mut self, day: usize, usage: f64, cost: f64) {
        if let (Some(usages), Some(costs)) = (self.usages.get_mut(day), self.costs.get_mut(day)) {
            *usages += usage;
            *costs += cost;
            self.total_usage += usage;
            self.total_cost += cost;
        }
    }
}
