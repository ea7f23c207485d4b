//! The records that a caller may see, as a condition of the query: pages, counts and filters then contain no others.

use crate::db::Sql;

/// The visible records: the caller's own, what is in some trees of projects, and what an agent needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// Id of the user whose own records these are.
    pub owner: String,
    /// Names of the projects at the top of the trees.
    pub trees: Vec<String>,
    /// The node of an agent: it sees what waits and what it runs.
    pub node: Option<String>,
}

impl Scope {
    /// ` AND (…)` for a query from `tasks`.
    pub(crate) fn of_tasks(&self, sql: &mut Sql) {
        self.begin(sql, "tasks");
        if let Some(node) = &self.node {
            sql.push(" OR tasks.status = 'queued'");
            // An agent of some of the machine's GPUs adds them to its name, as workers do.
            for column in ["tasks.node", "tasks.last_worker"] {
                sql.push(format_args!(" OR {column} = ")).push_bind(node.clone());
                starts_with(sql.push(" OR "), column, &format!("{node}:"));
            }
        }
        sql.push(")");
    }

    /// ` AND (…)` for a query from a table with `owner` and `project`.
    pub(crate) fn of_owned(&self, sql: &mut Sql, table: &'static str) {
        self.begin(sql, table);
        sql.push(")");
    }

    /// ` AND (…)` for a query from `projects`.
    pub(crate) fn of_projects(&self, sql: &mut Sql) {
        if self.trees.is_empty() {
            sql.push(" AND 1 = 0");
            return;
        }
        sql.push(" AND (");
        self.names(sql);
        sql.push(")");
    }

    fn begin(&self, sql: &mut Sql, table: &'static str) {
        sql.push(format_args!(" AND ({table}.owner = ")).push_bind(self.owner.clone());
        if !self.trees.is_empty() {
            sql.push(format_args!(" OR {table}.project IN (SELECT id FROM projects WHERE "));
            self.names(sql);
            sql.push(")");
        }
    }

    /// The projects themselves, as a condition on `name`.
    fn names(&self, sql: &mut Sql) {
        for (n, tree) in self.trees.iter().enumerate() {
            sql.push(if n == 0 { "" } else { " OR " }).push("name = ").push_bind(tree.clone());
            starts_with(sql.push(" OR "), "name", &format!("{tree}/"));
        }
    }
}

/// Tests the beginning of a text: unlike `LIKE`, for all characters, and unlike an order, for all languages.
fn starts_with(sql: &mut Sql, column: &'static str, beginning: &str) {
    let length = i64::try_from(beginning.chars().count()).unwrap_or(i64::MAX);
    sql.push(format_args!("substr({column}, 1, CAST("))
        .push_bind(length)
        .push(" AS INTEGER)) = ")
        .push_bind(beginning.to_owned());
}
