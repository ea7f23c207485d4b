//! `cantle.get_budgets` and `cantle.set_budget`: the GPU time that projects may use in a month.

use cantle_model::Budget;
use serde::{Deserialize, Serialize};

use crate::Empty;
use crate::wire::endpoint;

/// `cantle.get_budgets`: of the projects that the caller may see.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct GetBudgets {
    /// Of this project only (name or id).
    pub project: Option<String>,
}
endpoint!("cantle.get_budgets", GetBudgets => Budgets);

/// Answer of `cantle.get_budgets`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Budgets {
    /// By name of the project.
    pub budgets: Vec<BudgetView>,
}

/// A budget with its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BudgetView {
    /// Name of the project.
    pub project: String,
    /// The budget.
    #[serde(flatten)]
    pub budget: Budget,
    /// The month in UTC that `used_seconds` is of, like `2026-11`; absent: nothing was counted yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub month: Option<String>,
    /// The time that the project and those below it used in it, in seconds of a whole GPU, as counted some seconds ago.
    pub used_seconds: u64,
    /// The same, in percent of the budget.
    pub used_percent: u64,
}

/// `cantle.set_budget`: the project is made if there is none of that name.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SetBudget {
    /// Name of the project.
    pub project: String,
    /// Its new budget; absent: it has none any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget: Option<Budget>,
}
endpoint!("cantle.set_budget", SetBudget => Empty);
