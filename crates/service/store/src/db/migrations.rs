//! The migrations, in the order in which they are applied.
//!
//! sqlx has a macro that reads the directory, but it brings a second SQLite, compiled for the compiler itself.

use std::borrow::Cow;

use sqlx::migrate::{Migration, MigrationType, Migrator};
use sqlx::{AssertSqlSafe, SqlSafeStr as _, SqlStr};

use crate::db::Kind;

/// The text for PostgreSQL.
enum Postgres {
    /// The same.
    Same,
    /// This after it.
    And(&'static str),
    /// This instead.
    Instead(&'static str),
}
use Postgres::{And, Instead, Same};

/// Version, description, text for SQLite, and text for PostgreSQL. A released migration never changes: the database remembers
/// a checksum of each text.
const MIGRATIONS: [(i64, &str, &str, Postgres); 36] = [
    (
        1,
        "first",
        include_str!("../../migrations/0001_first.sql"),
        And(include_str!("../../migrations/postgres/0001_first.sql")),
    ),
    (2, "quotas", include_str!("../../migrations/0002_quotas.sql"), Same),
    (3, "samples", include_str!("../../migrations/0003_samples.sql"), Same),
    (4, "charts", include_str!("../../migrations/0004_charts.sql"), Same),
    (5, "project use", include_str!("../../migrations/0005_project_use.sql"), Same),
    (6, "stop asked", include_str!("../../migrations/0006_stop_asked.sql"), Same),
    (7, "probes", include_str!("../../migrations/0007_probes.sql"), Same),
    (
        8,
        "lists",
        include_str!("../../migrations/0008_lists.sql"),
        Instead(include_str!("../../migrations/postgres/0008_lists.sql")),
    ),
    (9, "runs", include_str!("../../migrations/0009_runs.sql"), Same),
    (10, "users", include_str!("../../migrations/0010_users.sql"), Same),
    (
        11,
        "audit",
        include_str!("../../migrations/0011_audit.sql"),
        And(include_str!("../../migrations/postgres/0011_audit.sql")),
    ),
    (12, "lost nodes", include_str!("../../migrations/0012_lost_nodes.sql"), Same),
    (
        13,
        "lists by owner",
        include_str!("../../migrations/0013_lists_by_owner.sql"),
        Instead("-- The indexes of lists have no such columns there."),
    ),
    (15, "made by", include_str!("../../migrations/0015_made_by.sql"), Same),
    (16, "people", include_str!("../../migrations/0016_people.sql"), Same),
    (17, "sessions", include_str!("../../migrations/0017_sessions.sql"), Same),
    (
        18,
        "tags",
        include_str!("../../migrations/0018_tags.sql"),
        Instead(include_str!("../../migrations/postgres/0018_tags.sql")),
    ),
    (19, "pools", include_str!("../../migrations/0019_pools.sql"), Same),
    (
        20,
        "names",
        include_str!("../../migrations/0020_names.sql"),
        Instead(include_str!("../../migrations/postgres/0020_names.sql")),
    ),
    (
        21,
        "unchanged",
        include_str!("../../migrations/0021_unchanged.sql"),
        Instead(include_str!("../../migrations/postgres/0021_unchanged.sql")),
    ),
    (22, "usage", include_str!("../../migrations/0022_usage.sql"), Same),
    (23, "measured", include_str!("../../migrations/0023_measured.sql"), Same),
    (24, "output once", include_str!("../../migrations/0024_output_once.sql"), Same),
    (25, "time limits", include_str!("../../migrations/0025_time_limits.sql"), Same),
    (26, "dependencies", include_str!("../../migrations/0026_dependencies.sql"), Same),
    (27, "arrays", include_str!("../../migrations/0027_arrays.sql"), Same),
    (30, "notices", include_str!("../../migrations/0030_notices.sql"), Same),
    (31, "secrets", include_str!("../../migrations/0031_secrets.sql"), Same),
    (32, "sides", include_str!("../../migrations/0032_sides.sql"), Same),
    (
        33,
        "budgets",
        include_str!("../../migrations/0033_budgets.sql"),
        Instead(include_str!("../../migrations/postgres/0033_budgets.sql")),
    ),
    (34, "run slices", include_str!("../../migrations/0034_run_slices.sql"), Same),
    (35, "queue preempts", include_str!("../../migrations/0035_queue_preempts.sql"), Same),
    (36, "user times", include_str!("../../migrations/0036_user_times.sql"), Same),
    (
        37,
        "usage days",
        include_str!("../../migrations/0037_usage_days.sql"),
        Instead(include_str!("../../migrations/postgres/0037_usage_days.sql")),
    ),
    (38, "idle times", include_str!("../../migrations/0038_idle_times.sql"), Same),
    (43, "direct runs", include_str!("../../migrations/0043_direct_runs.sql"), Same),
];

pub(crate) fn migrator(kind: Kind) -> Migrator {
    let migration = |(version, description, text, postgres)| {
        let text = match kind {
            Kind::Sqlite => SqlStr::from_static(text),
            Kind::Postgres => AssertSqlSafe(on_postgres(text, &postgres)).into_sql_str(),
        };
        Migration::new(version, Cow::Borrowed(description), MigrationType::Simple, text, false)
    };
    Migrator::with_migrations(MIGRATIONS.into_iter().map(migration).collect())
}

/// The versions that this program knows.
pub(crate) fn versions() -> impl Iterator<Item = i64> {
    MIGRATIONS.iter().map(|(version, ..)| *version)
}

/// Texts are ordered by their bytes, as in SQLite, whatever the database's language is.
fn on_postgres(text: &str, postgres: &Postgres) -> String {
    match postgres {
        Same => in_bytes(text),
        And(more) => format!("{}\n{more}", in_bytes(text)),
        Instead(other) => (*other).to_owned(),
    }
}

fn in_bytes(text: &str) -> String {
    let lines = text.lines().map(|line| match line.trim_start().starts_with("--") {
        true => line.to_owned(),
        false => line.replace(" TEXT", " TEXT COLLATE \"C\""),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_in_the_list() {
        let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| name != "postgres")
            .collect();
        files.sort();
        let listed: Vec<String> = MIGRATIONS
            .iter()
            .map(|(version, description, ..)| format!("{version:04}_{}.sql", description.replace(' ', "_")))
            .collect();
        assert_eq!(files, listed);
    }
}
