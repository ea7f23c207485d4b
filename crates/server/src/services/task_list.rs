//! `tasks.get_all`: the database tests the conditions that it can; the others are tested on ClearML's objects.

use std::collections::{BTreeMap, BTreeSet};

use cantle_model::TaskStatus;
use cantle_store::{Compare, TagRule, TaskFilter, TaskKey, TaskRow, TaskTime, TimeRule};
use serde_json::{Map, Value};

use super::metrics::last_metrics;
use super::projects::with_subprojects;
use super::task_order;
use crate::app::Call;
use crate::error::ApiError;
use crate::filter::{Filter, Order, TASKS, Terms, Test, Times};
use crate::projection::{Paging, few, only};
use crate::rights::Right;
use crate::rights::act::Read;
use crate::routes::Routes;
use crate::task_json;

/// How many tasks are read at once.
const CHUNK: u64 = 500;

pub(super) fn add(routes: &mut Routes) {
    routes.on("tasks.get_all", get_all);
    routes.on("tasks.get_all_ex", get_all);
}

async fn get_all(call: Call, mut body: Map<String, Value>) -> Result<Value, ApiError> {
    with_subprojects(&call, &mut body).await?;
    let paging = Paging::read(&body)?;
    let window = paging.window(body.contains_key("id"))?;
    let mut rest = Filter::parse(&TASKS, &body)?;
    let order = task_order::parse(&call, &paging.order_by).await?;
    let Some(filter) = push_down(&mut rest)? else { return Ok(paging.answer("tasks", window, Vec::new())) };
    let wanted = |field: &str| paging.only_fields.iter().any(|name| name.split('.').next() == Some(field));
    let with_metrics = wanted("last_metrics") || rest.mentions("last_metrics");
    let measured =
        rest.mentions("last_metrics") || order.iter().any(|by| matches!(by.key, TaskKey::Metric(..)));
    // An order or a condition must not reveal values to a caller that may not read them.
    let scope = call.who.scope(if measured { Right::Read } else { Right::See });
    let filter = TaskFilter { order, scope, ..filter };
    let reading = Reading {
        call: &call,
        without_doc: rest.is_empty()
            && !paging.only_fields.is_empty()
            && !task_json::DOC_FIELDS.iter().any(|f| wanted(f)),
        with_metrics,
        // A condition may be about any member.
        fields: if rest.is_empty() { &paging.only_fields } else { &[] },
    };
    let mut objects = Vec::new();
    let (mut position, mut skip) = if rest.is_empty() { (window.skip, 0) } else { (0, window.skip) };
    loop {
        let found = u64::try_from(objects.len()).unwrap_or(u64::MAX);
        let size = if rest.is_empty() { CHUNK.min(window.take - found) } else { CHUNK };
        let chunk = reading.chunk(&filter, position, size).await?;
        let read = u64::try_from(chunk.len()).unwrap_or(u64::MAX);
        for task in chunk.into_iter().filter(|task| rest.is_empty() || rest.matches(task)) {
            if skip > 0 {
                skip -= 1;
            } else {
                objects.push(only(task, &paging.only_fields));
            }
            if u64::try_from(objects.len()).unwrap_or(u64::MAX) >= window.take {
                return Ok(paging.answer("tasks", window, objects));
            }
        }
        if read < size {
            return Ok(paging.answer("tasks", window, objects));
        }
        position += read;
    }
}

/// The columns of tasks that are read.
struct Reading<'a> {
    call: &'a Call,
    without_doc: bool,
    with_metrics: bool,
    /// The members that are wanted; empty: all.
    fields: &'a [String],
}

impl Reading<'_> {
    fn wants(&self, member: &str) -> bool {
        self.fields.is_empty()
            || member == "id"
            || self.fields.iter().any(|path| path.split('.').next() == Some(member))
    }

    /// ClearML's objects of some of the tasks, in their order.
    async fn chunk(&self, filter: &TaskFilter, skip: u64, take: u64) -> Result<Vec<Value>, ApiError> {
        let page = TaskFilter {
            limit: i64::try_from(take).ok(),
            offset: i64::try_from(skip).unwrap_or(i64::MAX),
            ..filter.clone()
        };
        let ids = self.call.store.task_ids(&page).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        // Artifacts and measured values are output. Conditions are tested on what is left of the task.
        let with_output = self.with_metrics || self.wants("execution");
        let readable = match self.call.who.scope(Right::Read).filter(|_| with_output) {
            None => None,
            Some(_) => {
                let readable = self.call.tasks_that_may::<Read>(&ids).await?;
                Some(readable.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>())
            }
        };
        let of_page = TaskFilter { ids: ids.clone(), without_doc: self.without_doc, ..TaskFilter::default() };
        let rows = self.call.store.tasks(&of_page).await?;
        let rows: BTreeMap<&str, &TaskRow> = rows.iter().map(|row| (row.index.id.as_str(), row)).collect();
        let mut objects = Vec::with_capacity(ids.len());
        // One that was deleted meanwhile is missing.
        for (id, row) in ids.iter().filter_map(|id| Some((id, rows.get(id.as_str())?))) {
            let mut task = task_json::task_with(row, |name| self.wants(name));
            if readable.as_ref().is_some_and(|ids| !ids.contains(id)) {
                task_json::hide_artifacts(&mut task);
            } else if self.with_metrics {
                task["last_metrics"] = last_metrics(self.call, &self.call.reporter(id, false).await?).await?;
            }
            objects.push(task);
        }
        Ok(objects)
    }
}

/// Takes what the database can test out of a filter; `None` if nothing can pass.
fn push_down(filter: &mut Filter) -> Result<Option<TaskFilter>, ApiError> {
    let mut down = TaskFilter::default();
    for (field, list) in [
        ("id", &mut down.ids),
        ("project", &mut down.projects),
        ("type", &mut down.kinds),
        ("parent", &mut down.parents),
        ("user", &mut down.owners),
    ] {
        plain(filter, field, list);
    }
    few(&down.ids)?;
    let mut queues = Vec::new();
    plain(filter, "execution.queue", &mut queues);
    match queues.as_slice() {
        [] => {}
        [_] => down.queue = queues.pop(),
        _ => filter.push("execution.queue", Test::Terms(Terms::any_of(queues))),
    }
    for test in filter.take("status") {
        let Test::Terms(terms) = test else { continue };
        let states = |words: &[String]| -> Result<Vec<TaskStatus>, ApiError> {
            words.iter().map(|word| word.parse().map_err(ApiError::invalid)).collect()
        };
        let (any, none) = (states(&terms.any)?, states(&terms.none)?);
        if terms.is_simple() && !terms.or && terms.all.is_empty() && !terms.empty && down.statuses.is_empty()
        {
            down.statuses = any;
            down.not_statuses.extend(none);
        } else {
            filter.push("status", Test::Terms(terms));
        }
    }
    for test in filter.take("name") {
        match test {
            Test::Pattern(regex) => match literal(regex.as_str()) {
                Some(name) => down.name = Some(name),
                None => down.name_pattern = Some(regex.as_str().to_owned()),
            },
            other => filter.push("name", other),
        }
    }
    down.tags = tag_rules(filter, "tags");
    down.system_tags = tag_rules(filter, "system_tags");
    for (field, time) in [
        ("created", TaskTime::Created),
        ("started", TaskTime::Started),
        ("completed", TaskTime::Completed),
        ("last_update", TaskTime::LastUpdate),
        ("last_change", TaskTime::LastUpdate),
        ("status_changed", TaskTime::StatusChanged),
    ] {
        for test in filter.take(field) {
            match test {
                Test::Times(times) => down.times.push(time_rule(time, &times)),
                other => filter.push(field, other),
            }
        }
    }
    Ok(Some(down))
}

/// Takes the condition out that a field is one of some words.
fn plain(filter: &mut Filter, field: &str, list: &mut Vec<String>) {
    for test in filter.take(field) {
        match &test {
            Test::Terms(terms) if list.is_empty() && terms.plain().is_some() => {
                *list = terms.plain().unwrap_or_default().to_vec();
            }
            _ => filter.push(field, test),
        }
    }
}

fn tag_rules(filter: &mut Filter, field: &str) -> Vec<TagRule> {
    let mut rules = Vec::new();
    for test in filter.take(field) {
        match test {
            Test::Terms(terms) if terms.is_simple() => {
                let Terms { or, any, all, none, empty, .. } = terms;
                rules.push(TagRule { or, any, all, none, or_empty: empty });
            }
            other => filter.push(field, other),
        }
    }
    rules
}

fn time_rule(time: TaskTime, times: &Times) -> TimeRule {
    let compare = |order: Order| match order {
        Order::Before => Compare::Less,
        Order::UpTo => Compare::LessOrEqual,
        Order::From => Compare::GreaterOrEqual,
        Order::After => Compare::Greater,
        Order::At => Compare::Equal,
    };
    let bounds = times.bounds.iter().map(|(order, bound)| (compare(*order), *bound)).collect();
    TimeRule { time, bounds, or_none: times.or_none }
}

/// The one text that a pattern matches, if it matches only one: `^a\.b$`, as clients write an exact name.
fn literal(pattern: &str) -> Option<String> {
    let inner = pattern.strip_prefix('^')?.strip_suffix('$')?;
    let (mut text, mut chars) = (String::new(), inner.chars());
    while let Some(c) = chars.next() {
        match c {
            '\\' => text.push(chars.next().filter(|c| !c.is_alphanumeric())?),
            '.' | '^' | '$' | '*' | '+' | '?' | '(' | ')' | '[' | ']' | '{' | '}' | '|' => return None,
            c => text.push(c),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::literal;

    #[test]
    fn exact_names() {
        for (pattern, text) in [
            ("^train$", Some("train")),
            (r"^a\.b\ c\-d$", Some("a.b c-d")),
            ("^a.b$", None),
            ("train", None),
            (r"^\d$", None),
            (r"^a\$", None),
            ("^$", Some("")),
        ] {
            assert_eq!(literal(pattern).as_deref(), text, "{pattern}");
        }
    }
}
