//! `cantle.get_budgets` and `cantle.set_budget`, and what budgets that are used up keep back.

use std::collections::BTreeMap;

use cantle_clearml::budgets::{BudgetView, Budgets, GetBudgets, SetBudget};
use cantle_clearml::{Empty, subcode};
use cantle_model::{AtFull, ProjectQuota};
use cantle_store::{BudgetMonth, BudgetRow, ProjectRow, Store, StoreError};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::projects::named;
use super::quotas::{make_project, project_path};
use crate::app::Call;
use crate::clock::date;
use crate::error::ApiError;
use crate::rights::Right;
use crate::routes::Routes;

pub(crate) fn add(routes: &mut Routes) {
    routes.typed(get_budgets);
    routes.typed(set_budget);
}

async fn get_budgets(call: Call, request: GetBudgets) -> Result<Budgets, ApiError> {
    let mut projects = call.app.store.projects().await?;
    projects.retain(|row| call.who.may(Right::See, Some(&row.name)));
    let asked = |row: &&ProjectRow| request.project.as_ref().is_none_or(|p| row.id == *p || row.name == *p);
    if let Some(wanted) = &request.project
        && !projects.iter().any(|row| asked(&row))
    {
        let message = format!("no project \"{wanted}\"");
        return Err(ApiError::new(400, subcode::INVALID_PROJECT_ID, message));
    }
    let budgets = call.store.budgets().await?;
    let view = |row: &ProjectRow| {
        let found = budgets.iter().find(|budget| budget.project == row.id)?;
        Some(BudgetView {
            project: row.name.clone(),
            budget: found.budget,
            month: Some(found.month.clone()).filter(|month| !month.is_empty()),
            used_seconds: found.used_seconds,
            used_percent: found.budget.percent(found.used_seconds),
        })
    };
    Ok(Budgets { budgets: projects.iter().filter(asked).filter_map(view).collect() })
}

async fn set_budget(call: Call, request: SetBudget) -> Result<Empty, ApiError> {
    let SetBudget { project, budget } = request;
    let project = named(&project)?;
    if let Some(budget) = &budget {
        budget.check().map_err(|error| ApiError::invalid(format!("project {project}: {error}")))?;
        make_project(&call, &project).await?;
    }
    call.store.set_budget(&project, budget.as_ref(), &call.who.label(), call.now_us).await?;
    // It holds from now on, not from the next count on.
    count(&call.app.store, call.now_us).await?;
    Ok(Empty {})
}

/// Counts the use of this month.
pub(crate) async fn count(store: &Store, now_us: i64) -> Result<(), StoreError> {
    store.count_budgets(&month(now_us)).await
}

/// The month in UTC, up to now.
pub(crate) fn month(now_us: i64) -> BudgetMonth {
    let first = Timestamp::from_microsecond(now_us)
        .and_then(|now| now.to_zoned(TimeZone::UTC).first_of_month()?.start_of_day())
        .map_or(now_us, |first| first.timestamp().as_microsecond());
    BudgetMonth { name: date(now_us, "%Y-%m"), from_us: first, now_us }
}

/// Budgets that are used up and say what happens then, by name of their project.
#[derive(Debug, Default)]
pub(crate) struct FullBudgets(BTreeMap<String, BudgetRow>);

impl FullBudgets {
    pub(crate) async fn read(call: &Call, projects: &[ProjectRow]) -> Result<Self, ApiError> {
        let names: BTreeMap<&str, &str> =
            projects.iter().map(|row| (row.id.as_str(), row.name.as_str())).collect();
        let rows = call.app.store.budgets().await?;
        let full = rows.into_iter().filter(|row| row.is_full() && row.budget.at_full != AtFull::Warn);
        let named = full.filter_map(|row| Some(((*names.get(row.project.as_str())?).to_owned(), row)));
        Ok(Self(named.collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Of a project and those above it.
    fn over(&self, project: &str) -> impl Iterator<Item = (&str, &BudgetRow)> {
        let names = project_path(project);
        names.filter_map(|name| self.0.get_key_value(name)).map(|(name, row)| (name.as_str(), row))
    }

    /// Why no task of this project starts: `has_quota` says whether the project of a budget has a quota, within which it goes on.
    pub(crate) fn keeps_back(&self, project: &str, has_quota: impl Fn(&str) -> bool) -> Option<String> {
        let keeps =
            |(name, row): &(&str, &BudgetRow)| row.budget.at_full == AtFull::Queue || !has_quota(name);
        let (name, row) = self.over(project).find(keeps)?;
        Some(format!(
            "project {name} {}; it waits until the month ends, or until cantle budget set {name} changes that",
            row.line()
        ))
    }

    /// The reason why the tasks of this project are limited to their quota.
    pub(crate) fn limits(&self, project: &str) -> Option<String> {
        let limits = |(_, row): &(&str, &BudgetRow)| row.budget.at_full == AtFull::NoBorrowing;
        let (name, row) = self.over(project).find(limits)?;
        Some(format!("project {name} {}, so it gets no more than its quota until the month ends", row.line()))
    }

    /// The quota of a project as its budget leaves it.
    pub(crate) fn within(&self, project: &str, quota: &ProjectQuota) -> ProjectQuota {
        let mut quota = quota.clone();
        if self.0.get(project).is_some_and(|row| row.budget.at_full == AtFull::NoBorrowing)
            && let Some(deserved) = quota.quotas()[0].deserved
        {
            quota.gpu.limit = Some(quota.gpu.limit.map_or(deserved, |limit| limit.min(deserved)));
        }
        quota
    }
}
