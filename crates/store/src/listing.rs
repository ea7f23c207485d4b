//! Lists of tasks: conditions, order and page become one SQL text, so that a page costs what is on it and not what there is.

use cantle_model::TaskStatus;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row as _, Sqlite};

use crate::data::{TaskIndex, TaskRow};
use crate::{Scope, Store, StoreError, row};

/// Which tasks, in which order, and which of them; an empty list or `None` is no condition.
#[derive(Clone, Debug, Default)]
pub struct TaskFilter {
    /// These ids.
    pub ids: Vec<String>,
    /// In one of these states.
    pub statuses: Vec<TaskStatus>,
    /// In none of these states.
    pub not_statuses: Vec<TaskStatus>,
    /// Of one of these projects.
    pub projects: Vec<String>,
    /// Of one of these types.
    pub kinds: Vec<String>,
    /// From this queue.
    pub queue: Option<String>,
    /// Made from one of these tasks.
    pub parents: Vec<String>,
    /// Of this name.
    pub name: Option<String>,
    /// With a match of this regular expression in their name.
    pub name_pattern: Option<String>,
    /// Rules for the tags that users set.
    pub tags: Vec<TagRule>,
    /// Rules for the system tags.
    pub system_tags: Vec<TagRule>,
    /// Rules for moments.
    pub times: Vec<TimeRule>,
    /// What counts first, then what decides between equals; the newest ones first without it.
    pub order: Vec<OrderBy>,
    /// Maximum number of tasks.
    pub limit: Option<i64>,
    /// How many to leave out before them.
    pub offset: i64,
    /// Of one of these users.
    pub owners: Vec<String>,
    /// Only what may be seen; `None`: everything.
    pub scope: Option<Scope>,
    /// Leave out what is not a column: `doc` is empty then.
    pub without_doc: bool,
}

/// Which words must be among the tags. An empty list is no condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TagRule {
    /// One of the lists is enough.
    pub or: bool,
    /// One of these.
    pub any: Vec<String>,
    /// All of these.
    pub all: Vec<String>,
    /// None of these.
    pub none: Vec<String>,
    /// Tasks without tags pass, too.
    pub or_empty: bool,
}

/// A moment of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskTime {
    /// When it was made.
    Created,
    /// When it began to run.
    Started,
    /// When it ended.
    Completed,
    /// Its last change.
    LastUpdate,
    /// The last change of its state.
    StatusChanged,
}

impl TaskTime {
    const fn column(self) -> &'static str {
        match self {
            Self::Created => "created_us",
            Self::Started => "started_us",
            Self::Completed => "completed_us",
            Self::LastUpdate => "last_update_us",
            Self::StatusChanged => "status_changed_us",
        }
    }
}

/// How a moment must lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// Before.
    Less,
    /// Before or at.
    LessOrEqual,
    /// After.
    Greater,
    /// After or at.
    GreaterOrEqual,
    /// At.
    Equal,
}

impl Compare {
    const fn sign(self) -> &'static str {
        match self {
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Equal => "=",
        }
    }
}

/// A condition on a moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeRule {
    /// Which moment.
    pub time: TaskTime,
    /// All must hold; microseconds since 1970.
    pub bounds: Vec<(Compare, i64)>,
    /// Tasks without that moment pass, too.
    pub or_none: bool,
}

/// What tasks are ordered by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskKey {
    /// A moment.
    Time(TaskTime),
    /// Its id.
    Id,
    /// Its name.
    Name,
    /// Its type.
    Kind,
    /// Its state.
    Status,
    /// The id of its project.
    Project,
    /// The name of its project.
    ProjectName,
    /// The task that it was made from.
    Parent,
    /// The highest iteration reported.
    LastIteration,
    /// A member of `doc`, by path; numbers by their value.
    Member(Vec<String>),
    /// A measured value: metric, variant, and which of its values.
    Metric(String, String, Which),
}

/// Which value of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest one.
    Last,
    /// The least one.
    Least,
    /// The greatest one.
    Greatest,
}

impl Which {
    const fn column(self) -> &'static str {
        match self {
            Self::Last => "value",
            Self::Least => "least",
            Self::Greatest => "greatest",
        }
    }
}

/// One criterion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderBy {
    /// What.
    pub key: TaskKey,
    /// From the greatest down.
    pub down: bool,
}

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

type Sql = QueryBuilder<Sqlite>;

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

    /// All conditions. `+` before a column keeps its index from being used.
    fn conditions(&self, sql: &mut Sql, driver: Driver) {
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
            one_of(sql, if driver == drives { "" } else { "+" }, column, values);
        }
        for status in words(&self.not_statuses) {
            sql.push(" AND +tasks.status <> ").push_bind(status);
        }
        if let Some(pattern) = &self.name_pattern {
            sql.push(" AND tasks.name REGEXP ").push_bind(pattern.clone());
        }
        if let Some(scope) = &self.scope {
            scope.of_tasks(sql);
        }
        self.tags.iter().for_each(|rule| rule.condition(sql, "tasks.tags"));
        self.system_tags.iter().for_each(|rule| rule.condition(sql, "tasks.system_tags"));
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
        sql.push(" LIMIT ").push_bind(self.limit.unwrap_or(-1)).push(" OFFSET ").push_bind(self.offset);
    }
}

fn one_of(sql: &mut Sql, guard: &'static str, column: &'static str, values: &[String]) {
    match values {
        [] => {}
        [one] => {
            sql.push(format_args!(" AND {guard}tasks.{column} = ")).push_bind(one.clone());
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
    fn condition(&self, sql: &mut Sql, column: &'static str) {
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
                has_tag(sql, column, word);
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

/// The text is looked for first, which is quick, and only where it is found the list is read.
fn has_tag(sql: &mut Sql, column: &'static str, word: &str) {
    let quoted = serde_json::Value::from(word).to_string();
    sql.push(format_args!("(instr({column}, "))
        .push_bind(quoted)
        .push(") > 0 AND EXISTS (SELECT 1 FROM json_each(");
    sql.push(column).push(") WHERE value = ").push_bind(word.to_owned()).push("))");
}

/// `ORDER BY`. Measured values are those of the joined tables `m0`, `m1`, …
fn order(sql: &mut Sql, by: &[OrderBy]) {
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
                member(sql.push("CAST("), path);
                sql.push(" AS REAL)").push(direction).push(", ");
                member(sql, path);
                String::new()
            }
        };
        sql.push(value);
        sql.push(direction).push(", ");
    }
    let down = by.first().is_none_or(|first| first.down);
    if by.is_empty() {
        sql.push("tasks.created_us DESC, ");
    }
    sql.push(if down { "tasks.id DESC" } else { "tasks.id" });
}

fn member(sql: &mut Sql, path: &[String]) {
    sql.push("(tasks.doc");
    for (n, part) in path.iter().enumerate() {
        sql.push(if n + 1 == path.len() { " ->> " } else { " -> " }).push_bind(part.clone());
    }
    sql.push(")");
}

impl Store {
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
        let driver = filter.driver();
        let rows = match filter.order.first().map(|first| &first.key) {
            Some(TaskKey::Metric(metric, variant, Which::Last))
                if matches!(driver, Driver::Project | Driver::Order) =>
            {
                return self.by_value(filter, metric, variant).await;
            }
            _ => self.select("tasks.id", filter).await?,
        };
        rows.iter().map(|row| Ok(row.try_get("id")?)).collect()
    }

    async fn select(&self, columns: &str, filter: &TaskFilter) -> Result<Vec<SqliteRow>, StoreError> {
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
        filter.conditions(&mut sql, filter.driver());
        order(&mut sql, &filter.order);
        filter.page(&mut sql);
        Ok(sql.build().fetch_all(&self.readers).await?)
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
                .push(" FROM latest_scalars m CROSS JOIN tasks ON tasks.id = m.task WHERE m.metric = ");
            sql.push_bind(metric.to_owned()).push(" AND m.variant = ").push_bind(variant.to_owned());
            filter.conditions(&mut sql, Driver::Ids);
            sql
        };
        let mut sql = measured("tasks.id");
        let down = filter.order.first().is_some_and(|first| first.down);
        sql.push(if down { " ORDER BY m.value DESC, m.task DESC" } else { " ORDER BY m.value, m.task" });
        filter.page(&mut sql);
        let mut ids: Vec<String> = sql.build_query_scalar().fetch_all(&self.readers).await?;
        let found = i64::try_from(ids.len()).unwrap_or(i64::MAX);
        let left = filter.limit.map(|limit| limit.saturating_sub(found));
        if left == Some(0) {
            return Ok(ids);
        }
        let all: i64 = measured("COUNT(*)").build_query_scalar().fetch_one(&self.readers).await?;
        let mut sql =
            Sql::new("SELECT tasks.id FROM tasks WHERE NOT EXISTS (SELECT 1 FROM latest_scalars m WHERE ");
        sql.push("m.task = tasks.id AND m.metric = ").push_bind(metric.to_owned());
        sql.push(" AND m.variant = ").push_bind(variant.to_owned()).push(")");
        filter.conditions(&mut sql, filter.driver());
        order(&mut sql, &[]);
        let rest = TaskFilter {
            limit: left,
            offset: filter.offset.saturating_sub(all).max(0),
            ..TaskFilter::default()
        };
        rest.page(&mut sql);
        let rest: Vec<String> = sql.build_query_scalar().fetch_all(&self.readers).await?;
        ids.extend(rest);
        Ok(ids)
    }
}
