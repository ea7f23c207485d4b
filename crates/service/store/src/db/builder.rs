//! Builds a statement from parts.
//!
//! A value is `?` in its text: SQLite looks up the name of each `$n` among all others, which takes long in a statement with
//! thousands of them. PostgreSQL gets the numbers when the statement runs.

use std::fmt::{Display, Write as _};

use super::query::{FromRow, Get, Query, Row, Value};

/// Text so far, and the values in it.
#[derive(Debug)]
pub(crate) struct Sql {
    text: String,
    values: Vec<Value>,
}

/// Parts of a list.
pub(crate) struct List<'a> {
    sql: &'a mut Sql,
    between: &'static str,
    is_first: bool,
}

impl List<'_> {
    fn separate(&mut self) {
        if !std::mem::take(&mut self.is_first) {
            self.sql.text.push_str(self.between);
        }
    }

    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.separate();
        self.sql.push_bind(value);
        self
    }

    /// `part` is a text of this crate, never input.
    pub(crate) fn push(&mut self, part: &'static str) -> &mut Self {
        self.separate();
        self.sql.push(part);
        self
    }
}

impl Sql {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    /// `part` is a text of this crate, never input.
    pub(crate) fn push(&mut self, part: impl Display) -> &mut Self {
        // Writing to a string cannot fail.
        let _ = write!(self.text, "{part}");
        self
    }

    pub(crate) fn push_bind(&mut self, value: impl Into<Value>) -> &mut Self {
        self.values.push(value.into());
        self.text.push('?');
        self
    }

    pub(crate) const fn separated(&mut self, between: &'static str) -> List<'_> {
        List { sql: self, between, is_first: true }
    }

    /// `VALUES (…), (…)`: one row for each item.
    pub(crate) fn push_values<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        row: impl FnMut(&mut List<'_>, T),
    ) {
        self.push("VALUES ");
        self.push_rows(items, row);
    }

    fn push_rows<T>(&mut self, items: impl IntoIterator<Item = T>, mut row: impl FnMut(&mut List<'_>, T)) {
        for (n, item) in items.into_iter().enumerate() {
            self.push(if n == 0 { "(" } else { ", (" });
            row(&mut self.separated(", "), item);
            self.push(")");
        }
    }

    pub(crate) fn build(self) -> Query<Row> {
        Query::marked(self.text, self.values, Ok)
    }

    pub(crate) fn build_as<T: FromRow>(self) -> Query<T> {
        Query::marked(self.text, self.values, |row| T::from_row(&row))
    }

    pub(crate) fn build_scalar<T: for<'r> Get<'r>>(self) -> Query<T> {
        Query::marked(self.text, self.values, |row| row.try_get(0))
    }
}
