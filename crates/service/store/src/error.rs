//! The reasons why the store refuses a call or fails.

use cantle_model::{PoolRule, Resource, TaskStatus, TimeLimit};

use crate::db;
use crate::tasks::wishes::ChangedLimit;

/// Each variant is one line: what is wrong, what was given. ClearML's clients see most of these texts.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No task has this id.
    #[error("Invalid task id: id={0}")]
    NoTask(String),
    /// No queue has this id.
    #[error("Invalid queue id: id={0}")]
    NoQueue(String),
    /// No project has this id.
    #[error("Invalid project id: id={0}")]
    NoProject(String),
    /// A user has as many tasks in queues as it may.
    #[error("{user} has {most} tasks in queues, and may have no more at once")]
    OverQueued {
        /// The user.
        user: String,
        /// How many it may have.
        most: u64,
    },
    /// A user would hold more GPUs than it may.
    #[error("{user} holds {held} and may hold {most} at once; task {task} needs {} more", Resource::Gpu.text(*asked_milli))]
    OverLimit {
        /// The user.
        user: String,
        /// The task.
        task: String,
        /// Its limit.
        most: String,
        /// Its holdings.
        held: String,
        /// The demand of the task, in thousandths of a GPU.
        asked_milli: u64,
    },
    /// The budget of a project is used up.
    #[error(
        "project {project} {used}; task {task} waits until the month ends, or until the budget is changed"
    )]
    OverBudget {
        /// The task.
        task: String,
        /// The project with the budget.
        project: String,
        /// The amount that it has used.
        used: String,
    },
    /// A task or a model would have a longer document than there may be.
    #[error("the document of a task or a model has at most {most} bytes; this one would have {bytes}")]
    LongDocument {
        /// How many it would have.
        bytes: usize,
        /// How many it may have.
        most: usize,
    },
    /// A user's documents would take more than they may.
    #[error(
        "user {owner} has documents of {sum} bytes, and may have {most} in all, not counting those up to 64 KiB; delete tasks \
         or models, or keep large texts as artifacts"
    )]
    ManyDocuments {
        /// The id of the user.
        owner: String,
        /// How many bytes they have.
        sum: u64,
        /// How many they may have.
        most: u64,
    },
    /// A task has no time limit that could be changed, or not so.
    #[error("{}", match (which, limit) {
        (ChangedLimit::Run, None) => format!("task {task} has no time limit"),
        (ChangedLimit::Run, Some(limit)) => {
            format!("task {task} may run {limit}: from 1s to 366d have to be left")
        }
        (ChangedLimit::Idle, None) => format!("task {task} may be idle as long as it likes"),
        (ChangedLimit::Idle, Some(limit)) => {
            format!("task {task} may be idle for {limit}: from 1m to 366d have to be left")
        }
    })]
    NoTime {
        /// The task.
        task: String,
        /// Which of its limits.
        which: ChangedLimit,
        /// Its limit.
        limit: Option<TimeLimit>,
    },
    /// No model has this id.
    #[error("Invalid model id: id={0}")]
    NoModel(String),
    /// The task waits already.
    #[error("Task is already queued: task={task}, queue={queue}")]
    AlreadyQueued {
        /// The task.
        task: String,
        /// The queue that it waits in.
        queue: String,
    },
    /// The task is not in that queue.
    #[error("Task is not in the queue: task={task}, queue={queue}")]
    NotInQueue {
        /// The task.
        task: String,
        /// The queue.
        queue: String,
    },
    /// The task's state does not allow it.
    #[error("Invalid task status: task={task} is {from}, which does not allow {wanted}")]
    Status {
        /// The task.
        task: String,
        /// Its state.
        from: TaskStatus,
        /// The operation.
        wanted: String,
    },
    /// Another lease holds the task.
    #[error("Task is held by another lease: task={task}, node={node}, lease={lease}")]
    Claimed {
        /// The task.
        task: String,
        /// Where it runs.
        node: String,
        /// The lease that holds it.
        lease: String,
    },
    /// A lease reports the end of a task that no lease holds.
    #[error("Task is not held by this lease any more: task={task}, lease={lease}")]
    NotHeld {
        /// The task.
        task: String,
        /// The lease that reports.
        lease: String,
    },
    /// A report about a run that was given up, or has ended.
    #[error("Run was given up or has ended: task={task}, run={run}, newest run={newest}")]
    StaleRun {
        /// The task.
        task: String,
        /// The run that the report names.
        run: i64,
        /// The task's newest run.
        newest: i64,
    },
    /// The task would take more than its project, or one above it, may have.
    #[error(
        "project {project} holds {} of its {rule} of {}; task {task} needs {} more",
        resource.text(*held), resource.text(*most), resource.text(*asked)
    )]
    OverQuota {
        /// The task.
        task: String,
        /// The project.
        project: String,
        /// `limit`, or `quota` for a task that cannot be stopped for others.
        rule: &'static str,
        /// Of what.
        resource: Resource,
        /// The limit or quota, in the resource's unit.
        most: u64,
        /// The holdings of the project's tasks.
        held: u64,
        /// The demand of the task.
        asked: u64,
    },
    /// The task would take more of a pool than its project, or one above it, may have.
    #[error(
        "project {project} holds {} of its {rule} of {} of pool {pool}; task {task} needs {} more",
        Resource::Gpu.text(*held), Resource::Gpu.text(*most), Resource::Gpu.text(*asked)
    )]
    OverPool {
        /// The task.
        task: String,
        /// The project.
        project: String,
        /// The pool.
        pool: String,
        /// `limit`, or `quota` for a task that cannot be stopped for others.
        rule: &'static str,
        /// The limit or quota, in thousandths of a GPU.
        most: u64,
        /// The holdings of the project's tasks.
        held: u64,
        /// The demand of the task.
        asked: u64,
    },
    /// The task would get a GPU that its project, or one above it, may not use.
    #[error(
        "{rule}; a GPU of node {node} (model \"{model}\") is in none of them, so task {task} cannot have it"
    )]
    OutsidePools {
        /// The project and its pools.
        rule: PoolRule,
        /// The task.
        task: String,
        /// The node that claims it.
        node: String,
        /// The model of the GPU; empty if its node has not reported it.
        model: String,
    },
    /// There is no such pool.
    #[error("there is no pool \"{name}\"; {}", if known.is_empty() { "there is none at all".to_owned() } else { format!("there are {known}") })]
    NoPool {
        /// The name that was given.
        name: String,
        /// The names of all pools.
        known: String,
    },
    /// Quotas name the pool.
    #[error("pool {name} is in use by the quota of project {projects}; change the quota first")]
    PoolInUse {
        /// The pool.
        name: String,
        /// Names of projects.
        projects: String,
    },
    /// There is no such user.
    #[error("there is no user \"{0}\"")]
    NoUser(String),
    /// The state that an eviction was decided on has changed.
    #[error("The eviction is out of date: {0}")]
    StaleEviction(String),
    /// Names are unique.
    #[error("A {what} of this name exists already: name={name}")]
    NameTaken {
        /// Kind of thing.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// Tasks wait in the queue.
    #[error("Queue is not empty: id={0}; take its tasks out first, or use force")]
    QueueNotEmpty(String),
    /// Tasks belong to the project.
    #[error("Project has tasks: id={0}; delete or move them first, or use force")]
    ProjectHasTasks(String),
    /// The disk takes nothing more, or fails. The transaction was rolled back; the next one may succeed.
    #[error("{fault}: {source}")]
    Storage {
        /// The fault.
        fault: StorageFault,
        /// The database's own words.
        source: sqlx::Error,
    },
    /// The database failed.
    #[error("database: {0}")]
    Database(sqlx::Error),
    /// A database that this build does not know.
    #[error("--database {0} is not supported")]
    Scheme(String),
    /// A URL that cannot be read.
    #[error("--database: the URL cannot be read: {0}")]
    Address(String),
    /// It answers, and refuses the connection.
    #[error("the database at {place} refuses the connection: {source}")]
    Refused {
        /// Its location.
        place: String,
        /// Its own words.
        source: sqlx::Error,
    },
    /// A version that lacks what is needed.
    #[error("the database at {place} is PostgreSQL {version}; 14 or newer is needed")]
    TooOld {
        /// Its location.
        place: String,
        /// Its version.
        version: i32,
    },
    /// Texts of all languages cannot be kept in it.
    #[error("the database at {place} has the encoding {encoding}; UTF8 is needed")]
    Encoding {
        /// Its location.
        place: String,
        /// Its encoding.
        encoding: String,
    },
    /// A copy that follows another server.
    #[error("the database at {0} is read-only, as a standby is")]
    Standby(String),
    /// A pooler gives a connection to others between two transactions.
    #[error("the pooler at {0} does not keep sessions")]
    Pooled(String),
    /// A copy would be mixed with what is there.
    #[error("the new database is not empty")]
    NotEmpty,
    /// A copy lacks something.
    #[error("{table} has {there} rows in the old database and {here} in the new one")]
    Miscounted {
        /// The table.
        table: &'static str,
        /// Rows of the old one.
        there: i64,
        /// Rows of the new one.
        here: i64,
    },
    /// The tables cannot be brought up to date.
    #[error("database tables: {0}")]
    Migrate(sqlx::migrate::MigrateError),
    /// A newer program wrote the database.
    #[error("the database was written by a newer version of cantle (its tables are of version {0})")]
    Newer(i64),
    /// An older program wrote the database.
    #[error("the tables of the database are of version {schema}; this version of cantle has {newest}")]
    Outdated {
        /// Theirs.
        schema: i64,
        /// Ours.
        newest: i64,
    },
    /// Not a backup, or a damaged one.
    #[error("{} is not a complete backup: {why}", path.display())]
    NoBackup {
        /// The file.
        path: std::path::PathBuf,
        /// The fault.
        why: String,
    },
    /// A record that is not what was written.
    #[error("database: {what} is not readable: {source}")]
    Corrupt {
        /// The record.
        what: String,
        /// Why.
        source: serde_json::Error,
    },
}

/// The fault of the database's directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StorageFault {
    /// No room, or the quota is used up.
    #[error("the disk of the database is full")]
    Full,
    /// It cannot be read or written.
    #[error("the disk of the database fails")]
    Io,
    /// It must not be written.
    #[error("the database cannot be written")]
    ReadOnly,
    /// No connection was available.
    #[error("the database cannot be opened")]
    Away,
    /// Another change was first, and took too long.
    #[error("the database is busy with other changes")]
    Busy,
}

impl StorageFault {
    /// By PostgreSQL's codes, or SQLite's result codes, whose lowest byte names the class.
    pub(crate) fn of(error: &sqlx::Error) -> Option<Self> {
        let sqlx::Error::Database(answer) = error else {
            return match error {
                sqlx::Error::Io(source) if let Some(shared) = shared(source) => Self::of(shared),
                sqlx::Error::Io(source) if is_of_a_connection(source.kind()) => Some(Self::Away),
                // A step that needs locks (db/seen.rs).
                sqlx::Error::Io(source) if source.kind() == std::io::ErrorKind::WouldBlock => {
                    Some(Self::Busy)
                }
                sqlx::Error::Io(_) => Some(Self::Io),
                // sqlx reads a zero where the connection ended before the answer to its first question: no server returns
                // that.
                sqlx::Error::Protocol(text) if text.contains("SSLRequest: 0x00") => Some(Self::Away),
                sqlx::Error::PoolTimedOut | sqlx::Error::WorkerCrashed => Some(Self::Away),
                _ => None,
            };
        };
        if answer.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some() {
            return db::postgres::fault(&answer.code()?);
        }
        let code: u32 = answer.code()?.parse().ok()?;
        match code & 0xff {
            13 => Some(Self::Full),
            7 | 10 => Some(Self::Io),
            8 => Some(Self::ReadOnly),
            14 => Some(Self::Away),
            _ => None,
        }
    }
}

/// The error of a statement that was for several callers.
fn shared(error: &std::io::Error) -> Option<&sqlx::Error> {
    error.get_ref()?.downcast_ref::<db::Shared>().map(|shared| &*shared.0)
}

/// Files do not fail like this.
const fn is_of_a_connection(kind: std::io::ErrorKind) -> bool {
    use std::io::ErrorKind as Kind;
    matches!(
        kind,
        Kind::ConnectionRefused
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::NotConnected
            | Kind::BrokenPipe
            | Kind::UnexpectedEof
            | Kind::TimedOut
            | Kind::HostUnreachable
            | Kind::NetworkUnreachable
    )
}

impl From<sqlx::migrate::MigrateError> for StoreError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError::{Execute, ExecuteMigration, VersionMissing};
        match error {
            VersionMissing(version) => Self::Newer(version),
            // The database went away meanwhile: a server waits for it.
            Execute(source) | ExecuteMigration(source, _) if StorageFault::of(&source).is_some() => {
                Self::from(source)
            }
            other => Self::Migrate(other),
        }
    }
}

impl From<sqlx::Error> for StoreError {
    fn from(source: sqlx::Error) -> Self {
        match StorageFault::of(&source) {
            Some(fault) => Self::Storage { fault, source },
            None => Self::Database(source),
        }
    }
}

impl StoreError {
    /// Hints for the user.
    #[must_use]
    pub fn hints(&self) -> Vec<String> {
        match self {
            Self::Newer(_) => {
                vec![
                    "start that version; or restore a backup made before the upgrade: cantle restore FILE"
                        .to_owned(),
                ]
            }
            Self::Outdated { .. } => {
                vec![
                    "bring them up to date: cantle db migrate DATABASE; a server does it at its start"
                        .to_owned(),
                ]
            }
            Self::Migrate(_) => vec!["restore a backup: cantle restore FILE".to_owned()],
            Self::Storage { fault: StorageFault::Away | StorageFault::Busy, .. } => {
                vec!["start the database, or wait for it; the server continues by itself".to_owned()]
            }
            Self::Scheme(_) => {
                vec!["write sqlite:PATH or postgres://USER:PASSWORD@HOST:PORT/NAME".to_owned()]
            }
            Self::Address(_) => vec!["write postgres://USER:PASSWORD@HOST:PORT/NAME".to_owned()],
            Self::Refused { .. } => {
                vec!["check user, password and name of the database; make it with CREATE DATABASE".to_owned()]
            }
            Self::NotEmpty => vec!["name an empty one: CREATE DATABASE".to_owned()],
            Self::TooOld { .. } => vec!["upgrade PostgreSQL, or use another server".to_owned()],
            Self::Encoding { .. } => {
                vec!["make the database with CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0".to_owned()]
            }
            Self::Standby(_) => {
                vec!["name the primary in --database; its address must follow a fail-over".to_owned()]
            }
            Self::Pooled(_) => vec![
                "set pool_mode = session for this database (PgBouncer), or name PostgreSQL itself".to_owned(),
            ],
            Self::Storage { .. } => {
                vec!["make room, or fix the disk; the server continues by itself".to_owned()]
            }
            _ => Vec::new(),
        }
    }
}
