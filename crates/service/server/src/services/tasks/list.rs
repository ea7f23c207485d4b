//! `tasks.get_all`: the database tests the conditions that it can; the others are tested on ClearML's objects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cantle_model::TaskStatus;
use cantle_store::{Compare, TagRule, TaskFilter, TaskKey, TaskRow, TaskTime, TimeRule};
use serde_json::{Map, Value};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};

use super::order;
use crate::app::Call;
use crate::error::ApiError;
use crate::filter::{Filter, Order, TASKS, Terms, Test, Times};
use crate::lists::{List, parts};
use crate::projection::{Paging, few, only};
use crate::rights::Sight;
use crate::rights::act::Read;
use crate::routes::Routes;
use crate::services::output::metrics::last_metrics;
use crate::services::people::projects::with_subprojects;
use crate::task_json;

/// How many tasks are read at once.
const CHUNK: u64 = 500;

pub(crate) fn add(routes: &mut Routes) {
    routes.on("tasks.get_all", get_all);
    routes.on("tasks.get_all_ex", get_all);
}

async fn get_all(call: Call, mut body: Map<String, Value>) -> Result<Value, ApiError> {
    let mut list = call.lists.begin(&call.who.user).await?;
    with_subprojects(&call, &mut body).await?;
    let paging = Paging::read(&body)?;
    let window = paging.window(body.contains_key("id"))?;
    let mut rest = Filter::parse(&TASKS, &body)?;
    let order = order::parse(&call, &paging.order_by).await?;
    let Some(filter) = push_down(&mut rest)? else { return Ok(paging.answer("tasks", window, Vec::new())) };
    // An order or a condition must not reveal values to a caller that may not read them.
    let measured =
        rest.mentions("last_metrics") || order.iter().any(|by| matches!(by.key, TaskKey::Metric(..)));
    let seen = if measured { call.read() } else { call.seen() };
    let filter = TaskFilter { order, ..filter };
    let all_pass = rest.is_empty();
    let reading = Reading::new(&call, seen, rest, &paging.only_fields);
    let mut objects = Vec::new();
    let (mut position, mut skip) = if all_pass { (window.skip, 0) } else { (0, window.skip) };
    loop {
        let found = u64::try_from(objects.len()).unwrap_or(u64::MAX);
        let size = if all_pass { CHUNK.min(window.take - found) } else { CHUNK };
        let ids = reading.ids(&list, &filter, position, size).await?;
        let read = u64::try_from(ids.len()).unwrap_or(u64::MAX);
        for part in reading.parts(ids).await? {
            for task in reading.part(&list, part).await? {
                if skip > 0 {
                    skip -= 1;
                } else {
                    list.add(&task)?;
                    objects.push(task);
                }
                if u64::try_from(objects.len()).unwrap_or(u64::MAX) >= window.take {
                    return Ok(paging.answer("tasks", window, objects));
                }
            }
        }
        if read < size {
            return Ok(paging.answer("tasks", window, objects));
        }
        position += read;
    }
}

/// The fields that are read of tasks, and those that are left in the answer.
struct Reading<'a> {
    call: &'a Call,
    seen: Sight,
    without_doc: bool,
    with_metrics: bool,
    shape: Arc<Shape>,
}

/// The conditions, and the members that are wanted.
struct Shape {
    rest: Filter,
    /// Empty: all.
    only_fields: Vec<String>,
}

impl Shape {
    /// Whether a member has to be there: in the answer, or for a condition, which may be about any.
    fn wants(&self, member: &str) -> bool {
        !self.rest.is_empty()
            || self.only_fields.is_empty()
            || member == "id"
            || self.only_fields.iter().any(|path| path.split('.').next() == Some(member))
    }

    /// ClearML's objects of those tasks that meet the conditions. Searching a long text may take long.
    fn objects(&self, rows: &[Output], until: Instant) -> Option<Vec<Value>> {
        let mut objects = Vec::with_capacity(rows.len());
        for Output { row, metrics, is_readable } in rows {
            if Instant::now() > until {
                return None;
            }
            let mut task = task_json::task_with(row, |name| self.wants(name));
            if !is_readable {
                task_json::hide_artifacts(&mut task);
            }
            if let Some(metrics) = metrics {
                task["last_metrics"] = metrics.clone();
            }
            if self.rest.is_empty() || self.rest.matches(&task) {
                objects.push(only(task, &self.only_fields));
            }
        }
        Some(objects)
    }
}

/// A task with what is known of its output.
struct Output {
    row: TaskRow,
    metrics: Option<Value>,
    is_readable: bool,
}

impl<'a> Reading<'a> {
    fn new(call: &'a Call, seen: Sight, rest: Filter, only_fields: &[String]) -> Self {
        let wanted = |field: &str| only_fields.iter().any(|name| name.split('.').next() == Some(field));
        Self {
            call,
            seen,
            without_doc: rest.is_empty()
                && !only_fields.is_empty()
                && !task_json::DOC_FIELDS.iter().any(|field| wanted(field)),
            with_metrics: wanted("last_metrics") || rest.mentions("last_metrics"),
            shape: Arc::new(Shape { rest, only_fields: only_fields.to_vec() }),
        }
    }

    /// The ids of some of the tasks, in their order.
    async fn ids(
        &self,
        list: &List,
        filter: &TaskFilter,
        skip: u64,
        take: u64,
    ) -> Result<Vec<String>, ApiError> {
        let _part = list.part().await?;
        let page = TaskFilter {
            limit: i64::try_from(take).ok(),
            offset: i64::try_from(skip).unwrap_or(i64::MAX),
            ..filter.clone()
        };
        Ok(self.call.store.task_ids(&self.seen, page).await?)
    }

    /// The same, in parts that are not too long.
    async fn parts(&self, ids: Vec<String>) -> Result<Vec<Vec<String>>, ApiError> {
        let sizes = match self.without_doc || ids.is_empty() {
            true => BTreeMap::new(),
            false => self.call.store.document_sizes(&ids).await?,
        };
        Ok(parts(ids, &sizes))
    }

    /// ClearML's objects of those of these tasks that meet the conditions, in their order.
    async fn part(&self, list: &List, ids: Vec<String>) -> Result<Vec<Value>, ApiError> {
        let part = list.part().await?;
        // Artifacts and measured values are output. Conditions are tested on what is left of the task.
        let with_output = self.with_metrics || self.shape.wants("execution");
        let readable = match with_output && !self.call.read().is_all() {
            false => None,
            true => {
                let readable = self.call.tasks_that_may::<Read>(&ids).await?;
                Some(readable.iter().map(|task| task.id().to_owned()).collect::<BTreeSet<_>>())
            }
        };
        let of_part = TaskFilter { ids: ids.clone(), without_doc: self.without_doc, ..TaskFilter::default() };
        let rows = self.call.store.tasks(&self.seen, of_part).await?.into_iter();
        let mut rows: BTreeMap<String, TaskRow> = rows.map(|row| (row.index.id.clone(), row)).collect();
        let mut found = Vec::with_capacity(ids.len());
        // One that was deleted meanwhile is missing.
        for (id, row) in ids.iter().filter_map(|id| Some((id, rows.remove(id)?))) {
            let is_readable = readable.as_ref().is_none_or(|ids| ids.contains(id));
            let metrics = match self.with_metrics && is_readable {
                true => Some(last_metrics(self.call, &self.call.reporter(id, false).await?).await?),
                false => None,
            };
            found.push(Output { row, metrics, is_readable });
        }
        let (shape, until) = (Arc::clone(&self.shape), list.until());
        // The threads that answer others are not for this.
        let made = spawn_blocking(move || {
            let objects = shape.objects(&found, until);
            drop(part);
            objects
        });
        match timeout_at(until, made).await {
            Ok(Ok(Some(objects))) => Ok(objects),
            Ok(Ok(None)) | Err(_) => Err(list.late()),
            Ok(Err(error)) => Err(ApiError::new(500, 0, "the list could not be made").caused_by(error)),
        }
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
