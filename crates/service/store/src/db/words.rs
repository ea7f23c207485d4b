//! The SQL expressions that differ between SQLite and PostgreSQL.

use super::Kind;

impl Kind {
    /// As its makers write it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Sqlite => "SQLite",
            Self::Postgres => "PostgreSQL",
        }
    }

    /// Before a column that must not choose the index: SQLite would by a guess, PostgreSQL has statistics.
    pub(crate) const fn no_index(self) -> &'static str {
        match self {
            Self::Sqlite => "+",
            Self::Postgres => "",
        }
    }

    /// A join that reads the first table first. PostgreSQL finds that out by its statistics.
    pub(crate) const fn join_in_order(self) -> &'static str {
        match self {
            Self::Sqlite => "CROSS JOIN",
            Self::Postgres => "JOIN",
        }
    }

    /// Is a match of this regular expression in the text?
    pub(crate) const fn matches(self) -> &'static str {
        match self {
            Self::Sqlite => " REGEXP ",
            Self::Postgres => " ~ ",
        }
    }

    /// The function that finds the place of a text in another one, from 1.
    pub(crate) const fn place(self) -> &'static str {
        match self {
            Self::Sqlite => "instr",
            Self::Postgres => "strpos",
        }
    }

    /// The elements of a column with a list of texts, as the column `value`.
    pub(crate) fn elements(self, column: &str) -> String {
        match self {
            Self::Sqlite => format!("json_each({column})"),
            Self::Postgres => format!("json_array_elements_text({column}::json) AS elements (value)"),
        }
    }

    /// All sections of the tasks' hyperparameters, and all parameters in them, each with its `key`.
    pub(crate) const fn sections_and_params(self) -> &'static str {
        match self {
            Self::Sqlite => "json_each(tasks.doc, '$.hyperparams') section, json_each(section.value) param",
            Self::Postgres => {
                "json_each(tasks.doc::json -> 'hyperparams') section, json_each(section.value) param"
            }
        }
    }

    /// A column with JSON, of which a member is asked for by `->` and `->>`.
    pub(crate) fn json(self, column: &str) -> String {
        match self {
            Self::Sqlite => column.to_owned(),
            Self::Postgres => format!("{column}::json"),
        }
    }

    /// Before and after a text that may be a number: it becomes that number, or another value that is the same for all texts
    /// that are none.
    pub(crate) const fn number(self) -> (&'static str, &'static str) {
        match self {
            Self::Sqlite => ("CAST(", " AS REAL)"),
            Self::Postgres => ("cantle_number(", ")"),
        }
    }

    /// At the end of a list of rows that are changed: kept in this order.
    pub(crate) fn in_order(self, column: &str) -> String {
        match self {
            Self::Sqlite => String::new(),
            Self::Postgres => format!(" ORDER BY {column} FOR UPDATE"),
        }
    }

    /// After a criterion of an order that may be NULL: NULL is less than everything.
    pub(crate) const fn null_is_least(self, down: bool) -> &'static str {
        match (self, down) {
            (Self::Sqlite, _) => "",
            (Self::Postgres, false) => " NULLS FIRST",
            (Self::Postgres, true) => " NULLS LAST",
        }
    }

    /// The columns with the arrival times of an event and a piece of output, in microseconds since 1970.
    pub(crate) const fn arrival(self) -> [(&'static str, &'static str); 2] {
        match self {
            Self::Sqlite => [("happenings", "id"), ("logs", "id")],
            Self::Postgres => [("happenings", "time_us"), ("logs", "arrived_us")],
        }
    }

    /// Of events and output, those before which nothing can come any more: PostgreSQL numbers them when they are written, and
    /// shows them when their transaction ends. Ours end within 30 s; a minute is enough where numbers of transactions have
    /// begun again, as in a restored database.
    pub(crate) fn settled(self, arrival: &str) -> String {
        match self {
            Self::Sqlite => String::new(),
            Self::Postgres => format!(
                " AND (xid < pg_snapshot_xmin(pg_current_snapshot()) \
                 OR {arrival} < (EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint - 60000000)"
            ),
        }
    }
}
