//! Lists of tasks: conditions, order and page become one SQL text, so that the cost depends on the page and not on the
//! number of tasks.

use std::borrow::Cow;

use cantle_model::TaskStatus;

use super::filter::{OrderBy, TagRule, TaskFilter, TaskKey, Which};
use super::literal;
use crate::data::{TaskIndex, TaskRow};
use crate::db::{Kind, Row, Sql};
use crate::{Store, StoreError, row};

/// Up to this many tasks are found by an index of their own and then put in order.
const FEW: i64 = 2000;

/// The condition that finds the tasks; all others are tested on what it finds. SQLite would choose by a guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Ids,
    Name,
    Parent,
    Queue,
    Status,
    Project,
    /// None: the order's index is read from its beginning.
    Order,
}

impl TaskFilter {
    fn driver(&self) -> Driver {
        let few = |status: &TaskStatus| matches!(status, TaskStatus::Queued | TaskStatus::InProgress);
        if !self.ids.is_empty() {
            Driver::Ids
        } else if self.name.is_some() {
            Driver::Name
        } else if !self.parents.is_empty() {
            Driver::Parent
        } else if self.queue.is_some() {
            Driver::Queue
        } else if !self.statuses.is_empty() && self.statuses.iter().all(few) {
            Driver::Status
        } else if self.projects.len() == 1 {
            Driver::Project
        } else {
            Driver::Order
        }
    }

    /// All conditions. The column of the driver may use its index.
    fn conditions(&self, kind: Kind, sql: &mut Sql, driver: Driver) {
        let words = |statuses: &[TaskStatus]| statuses.iter().map(ToString::to_string).collect::<Vec<_>>();
        let queue: Vec<String> = self.queue.iter().cloned().collect();
        let name: Vec<String> = self.name.iter().cloned().collect();
        for (column, values, drives) in [
            ("id", &self.ids, Driver::Ids),
            ("name", &name, Driver::Name),
            ("parent", &self.parents, Driver::Parent),
            ("queue", &queue, Driver::Queue),
            ("status", &words(&self.statuses), Driver::Status),
            ("project", &self.projects, Driver::Project),
            ("kind", &self.kinds, Driver::Order),
            ("owner", &self.owners, Driver::Order),
        ] {
            one_of(kind, sql, if driver == drives { "" } else { kind.no_index() }, column, values);
        }
        for status in words(&self.not_statuses) {
            sql.push(format_args!(" AND {}tasks.status <> ", kind.no_index())).push_bind(status);
        }
        if let Some(pattern) = &self.name_pattern {
            let is_found = kind == Kind::Sqlite || literal::has_trigram(pattern);
            sql.push(if is_found { " AND tasks.name" } else { " AND (tasks.name || '')" });
            sql.push(kind.matches()).push_bind(pattern);
        }
        if let Some(scope) = &self.scope {
            scope.of_tasks(sql);
        }
        self.tags.iter().for_each(|rule| rule.condition(kind, sql, "tasks.tags"));
        self.system_tags.iter().for_each(|rule| rule.condition(kind, sql, "tasks.system_tags"));
        if let Some((created_us, id)) = &self.older_than {
            sql.push(" AND tasks.created_us <= ").push_bind(*created_us);
            sql.push(" AND (tasks.created_us < ").push_bind(*created_us);
            sql.push(" OR tasks.id < ").push_bind(id.clone()).push(")");
        }
        if let Some(array) = &self.array {
            // Its parent alone has an index, and clones have the same parent.
            sql.push(" AND tasks.parent = ").push_bind(array.clone());
            sql.push(
                " AND EXISTS (SELECT 1 FROM array_elements WHERE array_elements.task = tasks.id AND of_array = ",
            );
            sql.push_bind(array.clone()).push(")");
        }
        if self.is_folded {
            sql.push(
                " AND (tasks.status = 'in_progress' \
                 OR NOT EXISTS (SELECT 1 FROM array_elements WHERE array_elements.task = tasks.id))",
            );
        }
        for rule in &self.times {
            let column = rule.time.column();
            sql.push(" AND (1 = 1");
            for (compare, bound) in &rule.bounds {
                sql.push(format_args!(" AND tasks.{column} {} ", compare.sign())).push_bind(*bound);
            }
            if rule.or_none {
                sql.push(format_args!(" OR tasks.{column} IS NULL"));
            }
            sql.push(")");
        }
    }

    fn page(&self, sql: &mut Sql) {
        sql.push(" LIMIT ").push_bind(self.limit.unwrap_or(i64::MAX)).push(" OFFSET ").push_bind(self.offset);
    }
}

fn one_of(kind: Kind, sql: &mut Sql, guard: &'static str, column: &'static str, values: &[String]) {
    match values {
        [] => {}
        [one] => {
            sql.push(format_args!(" AND {guard}tasks.{column} = ")).push_bind(one.clone());
        }
        // The same text however many there are: SQLite prepares it once.
        many if column == "id" && kind == Kind::Sqlite => {
            let list = serde_json::Value::from(many).to_string();
            sql.push(format_args!(" AND {guard}tasks.id IN (SELECT value FROM json_each("));
            sql.push_bind(list).push("))");
        }
        many => {
            sql.push(format_args!(" AND {guard}tasks.{column} IN ("));
            let mut list = sql.separated(", ");
            for value in many {
                list.push_bind(value.clone());
            }
            sql.push(")");
        }
    }
}

impl TagRule {
    /// Tags that each task has that passes.
    fn required(&self) -> &[String] {
        match self {
            Self { or_empty: true, .. } => &[],
            Self { any, all, none, or: true, .. } if !(any.is_empty() && none.is_empty()) => &[],
            Self { all, .. } if !all.is_empty() => all,
            Self { any, .. } if any.len() == 1 => any,
            _ => &[],
        }
    }

    fn condition(&self, kind: Kind, sql: &mut Sql, column: &'static str) {
        let each = [(&self.any, " OR ", ""), (&self.all, " AND ", ""), (&self.none, " OR ", "NOT ")];
        let said: Vec<_> = each.into_iter().filter(|(words, ..)| !words.is_empty()).collect();
        if said.is_empty() && !self.or_empty {
            return;
        }
        sql.push(" AND (");
        if !said.is_empty() {
            sql.push("(");
        }
        for (n, (words, between, not)) in said.iter().enumerate() {
            let joined = if self.or { " OR " } else { " AND " };
            sql.push(if n == 0 { "" } else { joined }).push(*not).push("(");
            for (n, word) in words.iter().enumerate() {
                sql.push(if n == 0 { "" } else { *between });
                has_tag(kind, sql, column, word);
            }
            sql.push(")");
        }
        if !said.is_empty() {
            sql.push(")");
        }
        if self.or_empty {
            sql.push(if said.is_empty() { "" } else { " OR " }).push(format_args!("{column} = '[]'"));
        }
        sql.push(")");
    }
}

/// SQLite searches the text first, which is quick, and reads the list only where it is found. PostgreSQL has an index of
/// tags.
fn has_tag(kind: Kind, sql: &mut Sql, column: &'static str, word: &str) {
    if kind == Kind::Postgres && column == "tasks.tags" {
        sql.push("tasks.tags::jsonb @> to_jsonb(").push_bind(word).push("::text)");
        return;
    }
    let quoted = serde_json::Value::from(word).to_string();
    let (place, elements) = (kind.place(), kind.elements(column));
    sql.push(format_args!("({place}({column}, "))
        .push_bind(quoted)
        .push(format_args!(") > 0 AND EXISTS (SELECT 1 FROM {elements} WHERE value = "))
        .push_bind(word)
        .push("))");
}

/// `ORDER BY`. Measured values are those of the joined tables `m0`, `m1`, …
fn order(kind: Kind, sql: &mut Sql, by: &[OrderBy]) {
    sql.push(" ORDER BY ");
    for (n, OrderBy { key, down }) in by.iter().enumerate() {
        let direction = if *down { " DESC" } else { "" };
        let value = match key {
            TaskKey::Time(time) => format!("tasks.{}", time.column()),
            TaskKey::Id => "tasks.id".to_owned(),
            TaskKey::Name => "tasks.name".to_owned(),
            TaskKey::Kind => "tasks.kind".to_owned(),
            TaskKey::Status => "tasks.status".to_owned(),
            TaskKey::Project => "tasks.project".to_owned(),
            TaskKey::ProjectName => {
                "(SELECT name FROM projects WHERE projects.id = tasks.project)".to_owned()
            }
            TaskKey::Parent => "tasks.parent".to_owned(),
            TaskKey::LastIteration => "tasks.last_iteration".to_owned(),
            // Tasks without the value come last in both directions: the best ones are among those that were measured.
            TaskKey::Metric(.., which) => {
                format!("m{n}.{column} IS NULL, m{n}.{column}", column = which.column())
            }
            TaskKey::Member(path) => {
                let (before, after) = kind.number();
                member(kind, sql.push(before), path);
                sql.push(after).push(direction).push(kind.null_is_least(*down)).push(", ");
                member(kind, sql, path);
                String::new()
            }
        };
        sql.push(value).push(direction);
        sql.push(if key.may_be_null() { kind.null_is_least(*down) } else { "" }).push(", ");
    }
    let down = by.first().is_none_or(|first| first.down);
    if by.is_empty() {
        sql.push("tasks.created_us DESC, ");
    }
    sql.push(if down { "tasks.id DESC" } else { "tasks.id" });
}

fn member(kind: Kind, sql: &mut Sql, path: &[String]) {
    sql.push("(").push(kind.json("tasks.doc"));
    for (n, part) in path.iter().enumerate() {
        sql.push(if n + 1 == path.len() { " ->> " } else { " -> " }).push_bind(part);
    }
    sql.push(")");
}

impl Store {
    /// The filter with the ids of the few tasks that an index of names or tags finds; without them, if these are many. It is only
    /// asked where the tasks would be read in their order until the page is full, which takes long if nearly none passes.
    async fn narrowed<'a>(&self, filter: &'a TaskFilter) -> Result<Option<Cow<'a, TaskFilter>>, StoreError> {
        let is_slow = matches!(filter.driver(), Driver::Project | Driver::Order);
        if self.kind != Kind::Sqlite || !is_slow {
            return Ok(Some(Cow::Borrowed(filter)));
        }
        let mut lists = Vec::new();
        for tag in filter.tags.iter().flat_map(TagRule::required) {
            let mut sql = Sql::new("SELECT task FROM task_tags WHERE tag = ");
            sql.push_bind(tag.clone());
            lists.push(sql);
        }
        if let Some(pattern) = &filter.name_pattern
            && let Some(text) = literal::required(pattern)
        {
            let mut sql = Sql::new("SELECT id FROM tasks INDEXED BY tasks_by_name WHERE instr(name, ");
            sql.push_bind(text).push(") > 0 AND name REGEXP ").push_bind(pattern.clone());
            lists.push(sql);
        }
        for mut sql in lists {
            sql.push(" LIMIT ").push_bind(FEW + 1);
            let ids: Vec<String> = sql.build_scalar().fetch_all(&self.readers).await?;
            if ids.is_empty() {
                return Ok(None);
            }
            if i64::try_from(ids.len()).is_ok_and(|found| found <= FEW) {
                return Ok(Some(Cow::Owned(TaskFilter { ids, ..filter.clone() })));
            }
        }
        Ok(Some(Cow::Borrowed(filter)))
    }

    /// The indexed part of all tasks that match the filter.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn task_index(&self, filter: &TaskFilter) -> Result<Vec<TaskIndex>, StoreError> {
        let rows = self.select(row::TASK_INDEX, filter).await?;
        rows.iter().map(row::task_index).collect()
    }

    /// All tasks that match the filter.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn tasks(&self, filter: &TaskFilter) -> Result<Vec<TaskRow>, StoreError> {
        let columns = if filter.without_doc { columns!(tasks_without_doc) } else { columns!(tasks) };
        self.select(columns, filter).await?.iter().map(row::task).collect()
    }

    /// The ids of all tasks that match the filter.
    ///
    /// # Errors
    /// Only if the database fails.
    pub async fn task_ids(&self, filter: &TaskFilter) -> Result<Vec<String>, StoreError> {
        let Some(filter) = self.narrowed(filter).await? else { return Ok(Vec::new()) };
        let filter = &*filter;
        let driver = filter.driver();
        let rows = match filter.order.first().map(|first| &first.key) {
            Some(TaskKey::Metric(metric, variant, Which::Last))
                if matches!(driver, Driver::Project | Driver::Order) =>
            {
                return self.by_value(filter, metric, variant).await;
            }
            _ => self.select_as_it_is("tasks.id", filter).await?,
        };
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    async fn select(&self, columns: &str, filter: &TaskFilter) -> Result<Vec<Row>, StoreError> {
        match self.narrowed(filter).await? {
            Some(filter) => self.select_as_it_is(columns, &filter).await,
            None => Ok(Vec::new()),
        }
    }

    async fn select_as_it_is(&self, columns: &str, filter: &TaskFilter) -> Result<Vec<Row>, StoreError> {
        let mut sql = Sql::new("SELECT ");
        sql.push(columns).push(" FROM tasks");
        for (n, by) in filter.order.iter().enumerate() {
            if let TaskKey::Metric(metric, variant, _) = &by.key {
                sql.push(format_args!(
                    " LEFT JOIN latest_scalars m{n} ON m{n}.task = tasks.id AND m{n}.metric = "
                ));
                sql.push_bind(metric.clone())
                    .push(format_args!(" AND m{n}.variant = "))
                    .push_bind(variant.clone());
            }
        }
        sql.push(" WHERE 1 = 1");
        filter.conditions(self.kind, &mut sql, filter.driver());
        order(self.kind, &mut sql, &filter.order);
        filter.page(&mut sql);
        Ok(sql.build().planned_for_values().fetch_all(&self.readers).await?)
    }

    /// In the order of a measured value: its index is read from one end, then the tasks that were not measured.
    async fn by_value(
        &self,
        filter: &TaskFilter,
        metric: &str,
        variant: &str,
    ) -> Result<Vec<String>, StoreError> {
        let measured = |columns: &str| {
            let mut sql = Sql::new("SELECT ");
            sql.push(columns)
                .push(format_args!(
                    " FROM latest_scalars m {} tasks ON tasks.id = m.task",
                    self.kind.join_in_order()
                ))
                .push(" WHERE m.metric = ");
            sql.push_bind(metric.to_owned()).push(" AND m.variant = ").push_bind(variant.to_owned());
            filter.conditions(self.kind, &mut sql, Driver::Ids);
            sql
        };
        let mut sql = measured("tasks.id");
        let down = filter.order.first().is_some_and(|first| first.down);
        sql.push(if down { " ORDER BY m.value DESC, m.task DESC" } else { " ORDER BY m.value, m.task" });
        filter.page(&mut sql);
        let mut ids: Vec<String> = sql.build_scalar().fetch_all(&self.readers).await?;
        let found = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let left = filter.limit.map(|limit| limit.saturating_sub(found));
        if left == Some(0) {
            return Ok(ids);
        }
        let all: i64 = measured("COUNT(*)").build_scalar().fetch_one(&self.readers).await?;
        let mut sql =
            Sql::new("SELECT tasks.id FROM tasks WHERE NOT EXISTS (SELECT 1 FROM latest_scalars m WHERE ");
        sql.push("m.task = tasks.id AND m.metric = ").push_bind(metric.to_owned());
        sql.push(" AND m.variant = ").push_bind(variant.to_owned()).push(")");
        filter.conditions(self.kind, &mut sql, filter.driver());
        order(self.kind, &mut sql, &[]);
        let rest = TaskFilter {
            limit: left,
            offset: filter.offset.saturating_sub(all).max(0),
            ..TaskFilter::default()
        };
        rest.page(&mut sql);
        let rest: Vec<String> = sql.build_scalar().fetch_all(&self.readers).await?;
        ids.extend(rest);
        Ok(ids)
    }
}
