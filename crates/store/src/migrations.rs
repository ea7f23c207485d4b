//! The migrations, in the order in which they are applied.
//!
//! sqlx has a macro that reads the folder, but it brings a second SQLite, compiled for the compiler itself.

use std::borrow::Cow;

use sqlx::SqlSafeStr as _;
use sqlx::migrate::{Migration, MigrationType, Migrator};

/// Version, description and text. What is released is never changed: the database remembers a checksum of each text.
const MIGRATIONS: [(i64, &str, &str); 10] = [
    (1, "first", include_str!("../migrations/0001_first.sql")),
    (2, "quotas", include_str!("../migrations/0002_quotas.sql")),
    (3, "samples", include_str!("../migrations/0003_samples.sql")),
    (4, "charts", include_str!("../migrations/0004_charts.sql")),
    (5, "project use", include_str!("../migrations/0005_project_use.sql")),
    (6, "stop asked", include_str!("../migrations/0006_stop_asked.sql")),
    (7, "probes", include_str!("../migrations/0007_probes.sql")),
    (8, "lists", include_str!("../migrations/0008_lists.sql")),
    (10, "users", include_str!("../migrations/0010_users.sql")),
    (11, "audit", include_str!("../migrations/0011_audit.sql")),
];

pub(crate) fn migrator() -> Migrator {
    let migration = |(version, description, sql): (i64, &'static str, &'static str)| {
        Migration::new(version, Cow::Borrowed(description), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(MIGRATIONS.into_iter().map(migration).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_in_the_list() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/migrations");
        let mut files: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort();
        let listed: Vec<String> = MIGRATIONS
            .iter()
            .map(|(version, description, _)| format!("{version:04}_{}.sql", description.replace(' ', "_")))
            .collect();
        assert_eq!(files, listed);
    }
}
