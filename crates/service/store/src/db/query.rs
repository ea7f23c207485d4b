//! A statement with its values, and the rows that it returns.

use std::borrow::Cow;
use std::fmt::Write as _;

use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{
    Arguments as _, AssertSqlSafe, ColumnIndex, Decode, Postgres, Row as _, SqlSafeStr as _, SqlStr, Sqlite,
    Type,
};

use super::seen::needs_locks;
use super::{ConnectionRef, Kind, Pool, Tx};

/// A value of a statement. NULL has a type too: PostgreSQL asks for it.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Int(Option<i64>),
    Real(f64),
    Text(Option<String>),
    Bytes(Vec<u8>),
}

macro_rules! values {
    ($($from:ty => |$value:ident| $to:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $to
            }
        }
    )*};
}

values! {
    i64 => |value| Self::Int(Some(value));
    &i64 => |value| Self::Int(Some(*value));
    Option<i64> => |value| Self::Int(value);
    f64 => |value| Self::Real(value);
    &f64 => |value| Self::Real(*value);
    &str => |value| Self::Text(Some(value.to_owned()));
    &&str => |value| Self::Text(Some((*value).to_owned()));
    String => |value| Self::Text(Some(value));
    &String => |value| Self::Text(Some(value.clone()));
    Option<String> => |value| Self::Text(value);
    &Option<String> => |value| Self::Text(value.clone());
    Option<&String> => |value| Self::Text(value.cloned());
    Option<&str> => |value| Self::Text(value.map(str::to_owned));
    Vec<u8> => |value| Self::Bytes(value);
}

/// A row of one of both databases.
#[derive(Debug)]
pub(crate) enum Row {
    Sqlite(SqliteRow),
    Postgres(PgRow),
}

/// The types that both databases can read from a column.
pub(crate) trait Get<'r>:
    Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres>
{
}

impl<'r, T> Get<'r> for T where T: Decode<'r, Sqlite> + Type<Sqlite> + Decode<'r, Postgres> + Type<Postgres> {}

impl Row {
    /// Reads a column by its name or number.
    pub(crate) fn try_get<'r, T, I>(&'r self, column: I) -> Result<T, sqlx::Error>
    where
        T: Get<'r>,
        I: ColumnIndex<SqliteRow> + ColumnIndex<PgRow>,
    {
        match self {
            Self::Sqlite(row) => row.try_get(column),
            Self::Postgres(row) => row.try_get(column),
        }
    }
}

/// Rows that are tuples.
pub(crate) trait FromRow: Sized {
    fn from_row(row: &Row) -> Result<Self, sqlx::Error>;
}

macro_rules! tuples {
    ($(($($part:ident $at:literal),+);)*) => {$(
        impl<$($part: for<'r> Get<'r>),+> FromRow for ($($part,)+) {
            fn from_row(row: &Row) -> Result<Self, sqlx::Error> {
                Ok(($(row.try_get($at)?,)+))
            }
        }
    )*};
}

tuples! {
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
    (A 0, B 1, C 2, D 3, E 4);
}

/// A text and its values, as one of the databases takes them: with `?` for each value, or with `$n`.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(super) text: Cow<'static, str>,
    pub(super) values: Vec<Value>,
}

impl Statement {
    pub(super) fn sqlite<'q>(self) -> sqlx::query::Query<'q, Sqlite, SqliteArguments> {
        let mut query = sqlx::query::<Sqlite>(safe(self.text));
        for value in self.values {
            query = match value {
                Value::Int(value) => query.bind(value),
                Value::Real(value) => query.bind(value),
                Value::Text(value) => query.bind(value),
                Value::Bytes(value) => query.bind(value),
            };
        }
        query
    }

    pub(super) fn postgres<'q>(self) -> Result<sqlx::query::Query<'q, Postgres, PgArguments>, sqlx::Error> {
        let mut arguments = PgArguments::default();
        for value in self.values {
            match value {
                Value::Int(value) => arguments.add(value),
                Value::Real(value) => arguments.add(value),
                Value::Text(value) => arguments.add(value.map(without_nul)),
                Value::Bytes(value) => arguments.add(value),
            }
            .map_err(sqlx::Error::Encode)?;
        }
        Ok(sqlx::query_with(safe(self.text), arguments))
    }
}

/// A statement, its values, and how its rows are read.
#[derive(Debug)]
pub(crate) struct Query<O> {
    text: Cow<'static, str>,
    /// The text that PostgreSQL gets instead.
    postgres: Option<&'static str>,
    /// The addition to the text on PostgreSQL.
    lock: &'static str,
    values: Vec<Value>,
    /// A value is `?` in the text, not `$n`.
    is_marked: bool,
    /// PostgreSQL plans it for these values.
    is_planned_for_values: bool,
    read: fn(Row) -> Result<O, sqlx::Error>,
}

/// A statement whose rows are read by the caller.
pub(crate) fn query(text: impl Into<Cow<'static, str>>) -> Query<Row> {
    Query::new(text.into(), Vec::new(), Ok)
}

/// A statement whose rows are tuples.
pub(crate) fn query_as<T: FromRow>(text: impl Into<Cow<'static, str>>) -> Query<T> {
    Query::new(text.into(), Vec::new(), |row| T::from_row(&row))
}

/// A statement with one column.
pub(crate) fn query_scalar<T: for<'r> Get<'r>>(text: impl Into<Cow<'static, str>>) -> Query<T> {
    Query::new(text.into(), Vec::new(), |row| row.try_get(0))
}

/// Runs on either database. `$run` is a method of sqlx's query.
macro_rules! on {
    ($query:ident, $place:ident, $run:ident) => {
        match $place {
            ConnectionRef::Pool(Pool::Sqlite(pool)) => Fetched::Sqlite($query.sqlite().$run(pool).await?),
            ConnectionRef::Tx(Tx::Sqlite(tx)) => Fetched::Sqlite($query.sqlite().$run(&mut **tx).await?),
            ConnectionRef::Tx(Tx::Writing(writing)) => {
                let all = writing.with_waiting($query.statement());
                Fetched::Sqlite(all.sqlite().$run(writing.connection()?).await?)
            }
            ConnectionRef::Pool(Pool::Postgres(pool)) => {
                Fetched::Postgres($query.postgres()?.$run(pool).await?)
            }
            ConnectionRef::Tx(Tx::Postgres(tx)) => {
                tx.flush().await?;
                Fetched::Postgres($query.postgres()?.$run(tx.connection()).await?)
            }
            ConnectionRef::Tx(Tx::CheckedTask(_)) => return Err(needs_locks()),
        }
    };
}

enum Fetched<S, P> {
    Sqlite(S),
    Postgres(P),
}

impl<O> Query<O> {
    fn new(text: Cow<'static, str>, values: Vec<Value>, read: fn(Row) -> Result<O, sqlx::Error>) -> Self {
        Self { text, postgres: None, lock: "", values, is_marked: false, is_planned_for_values: false, read }
    }

    /// From a text with `?` for each value.
    pub(super) fn marked(text: String, values: Vec<Value>, read: fn(Row) -> Result<O, sqlx::Error>) -> Self {
        Self { is_marked: true, ..Self::new(text.into(), values, read) }
    }

    /// The next value: the first one is `$1`.
    pub(crate) fn bind(mut self, value: impl Into<Value>) -> Self {
        self.values.push(value.into());
        self
    }

    /// The next value, where the database does not make it.
    pub(crate) fn bind_on_sqlite(self, value: impl FnOnce() -> i64, kind: Kind) -> Self {
        if kind == Kind::Sqlite { self.bind(value()) } else { self }
    }

    /// PostgreSQL gets this text instead.
    pub(crate) const fn on_postgres(mut self, text: &'static str) -> Self {
        self.postgres = Some(text);
        self
    }

    /// PostgreSQL plans it for its values each time. After a few calls it would keep one plan for all values, and that reads
    /// whole tables for a value that nothing has.
    pub(crate) const fn planned_for_values(mut self) -> Self {
        self.is_planned_for_values = true;
        self
    }

    /// PostgreSQL keeps the rows for this transaction. SQLite has one writer at a time.
    pub(crate) const fn for_update(mut self) -> Self {
        self.lock = " FOR UPDATE";
        self
    }

    /// As [`Query::for_update`], without rows that another transaction keeps.
    pub(crate) const fn for_update_of_free(mut self) -> Self {
        self.lock = " FOR UPDATE SKIP LOCKED";
        self
    }

    /// As [`Query::for_update`], for a row that others only need to exist.
    pub(crate) const fn for_change(mut self) -> Self {
        self.lock = " FOR NO KEY UPDATE";
        self
    }

    /// PostgreSQL lets no other transaction delete the rows or change their keys during this one.
    pub(crate) const fn for_share(mut self) -> Self {
        self.lock = " FOR KEY SHARE";
        self
    }

    /// As [`Query::for_update`] for a task, and [`Query::for_share`] for a queue that it is read with.
    pub(crate) const fn for_entry(mut self) -> Self {
        self.lock = " FOR UPDATE OF tasks FOR KEY SHARE OF queues";
        self
    }

    /// Runs it in a transaction whose next statement, or whose commit, reports its error.
    pub(crate) async fn later(self, tx: &mut Tx) -> Result<(), sqlx::Error> {
        match tx {
            Tx::Writing(writing) => writing.later(self.statement()),
            Tx::Postgres(postgres) => postgres.later(self.of_postgres().statement()).await?,
            Tx::CheckedTask(seen) => seen.later(self.of_postgres().statement()),
            Tx::Sqlite(_) => drop(self.execute(tx).await?),
        }
        Ok(())
    }

    /// As [`Query::later`] for the statement that changes the row of the task that was read. It ends in a condition.
    pub(crate) async fn later_of_task(self, tx: &mut Tx) -> Result<(), sqlx::Error> {
        match tx {
            Tx::CheckedTask(seen) => seen.later_of_task(self.of_postgres().statement()),
            tx => self.later(tx).await?,
        }
        Ok(())
    }

    /// The number of rows that it wrote.
    pub(crate) async fn execute<'c>(self, on: impl Into<ConnectionRef<'c>>) -> Result<u64, sqlx::Error> {
        let mut place = on.into();
        // Their rows would be counted, too.
        if let ConnectionRef::Tx(Tx::Writing(writing)) = &mut place {
            writing.flush().await?;
        }
        Ok(match on!(self, place, execute) {
            Fetched::Sqlite(done) => done.rows_affected(),
            Fetched::Postgres(done) => done.rows_affected(),
        })
    }

    pub(crate) async fn fetch_all<'c>(self, on: impl Into<ConnectionRef<'c>>) -> Result<Vec<O>, sqlx::Error> {
        let (place, read) = (on.into(), self.read);
        match on!(self, place, fetch_all) {
            Fetched::Sqlite(rows) => rows.into_iter().map(|row| read(Row::Sqlite(row))).collect(),
            Fetched::Postgres(rows) => rows.into_iter().map(|row| read(Row::Postgres(row))).collect(),
        }
    }

    pub(crate) async fn fetch_optional<'c>(
        self,
        on: impl Into<ConnectionRef<'c>>,
    ) -> Result<Option<O>, sqlx::Error> {
        let (place, read) = (on.into(), self.read);
        match on!(self, place, fetch_optional) {
            Fetched::Sqlite(row) => row.map(|row| read(Row::Sqlite(row))).transpose(),
            Fetched::Postgres(row) => row.map(|row| read(Row::Postgres(row))).transpose(),
        }
    }

    /// Reads the row of the task that the step is about, and keeps it for the transaction or remembers its version.
    pub(crate) async fn fetch_task(self, tx: &mut Tx) -> Result<Option<O>, sqlx::Error> {
        let Tx::CheckedTask(seen) = tx else { return self.fetch_optional(tx).await };
        let read = self.read;
        let query = Self { lock: "", ..self }.postgres()?;
        let row = query.fetch_optional(seen.pool()).await?.map(Row::Postgres);
        row.map(|row| seen.note(&row).and_then(|()| read(row))).transpose()
    }

    pub(crate) async fn fetch_one<'c>(self, on: impl Into<ConnectionRef<'c>>) -> Result<O, sqlx::Error> {
        self.fetch_optional(on).await?.ok_or(sqlx::Error::RowNotFound)
    }

    fn sqlite<'q>(self) -> sqlx::query::Query<'q, Sqlite, SqliteArguments> {
        self.statement().sqlite()
    }

    fn statement(self) -> Statement {
        match self.is_marked {
            true => Statement { text: self.text, values: self.values },
            false => marked(&self.text, &self.values),
        }
    }

    /// With the text that PostgreSQL gets.
    fn of_postgres(self) -> Self {
        let text = self.postgres.map_or(self.text, Cow::Borrowed);
        let text = if self.lock.is_empty() { text } else { Cow::Owned(format!("{text}{}", self.lock)) };
        Self { text, postgres: None, lock: "", ..self }
    }

    fn postgres<'q>(self) -> Result<sqlx::query::Query<'q, Postgres, PgArguments>, sqlx::Error> {
        let is_kept = !self.is_planned_for_values;
        let Self { text, values, is_marked, .. } = self.of_postgres();
        let text = if is_marked { Cow::Owned(numbered(&text)) } else { text };
        Ok(Statement { text, values }.postgres()?.persistent(is_kept))
    }
}

/// The texts are this crate's own; what comes from outside is a value.
fn safe(text: Cow<'static, str>) -> SqlStr {
    match text {
        Cow::Borrowed(text) => text.into_sql_str(),
        Cow::Owned(text) => AssertSqlSafe(text).into_sql_str(),
    }
}

/// `?` for each `$n`: the place of a value depends on nothing before it.
fn marked(text: &str, values: &[Value]) -> Statement {
    let mut parts = text.split('$');
    let mut text = parts.next().unwrap_or_default().to_owned();
    let mut in_order = Vec::with_capacity(values.len());
    for part in parts {
        let digits = part.bytes().take_while(u8::is_ascii_digit).count();
        let value = part[..digits].parse().ok().and_then(|n: usize| values.get(n.checked_sub(1)?));
        match value {
            Some(value) => {
                in_order.push(value.clone());
                text.push('?');
                text.push_str(&part[digits..]);
            }
            // A path in JSON.
            None => {
                text.push('$');
                text.push_str(part);
            }
        }
    }
    Statement { text: Cow::Owned(text), values: in_order }
}

/// `$1`, `$2`… for each `?`.
pub(super) fn numbered(text: &str) -> String {
    let mut numbered = String::with_capacity(text.len() * 2);
    for (n, part) in text.split('?').enumerate() {
        if n > 0 {
            // Writing to a string cannot fail.
            let _ = write!(numbered, "${n}");
        }
        numbered.push_str(part);
    }
    numbered
}

/// PostgreSQL's texts have no NUL; a program may print one.
pub(crate) fn without_nul(text: String) -> String {
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_go_where_their_numbers_are() {
        let values = [Value::from("a"), Value::from(2)];
        let all = marked("SELECT $2, json_extract(doc, '$.x') WHERE id = $1 OR n < $2", &values);
        assert_eq!(all.text, "SELECT ?, json_extract(doc, '$.x') WHERE id = ? OR n < ?");
        assert_eq!(
            all.values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>(),
            ["Int(Some(2))", "Text(Some(\"a\"))", "Int(Some(2))"]
        );
    }
}
