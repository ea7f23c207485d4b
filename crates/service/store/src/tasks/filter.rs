//! The conditions on a list of tasks, and its order.

use cantle_model::TaskStatus;

use crate::Scope;

/// The conditions on tasks, their order, and the page; an empty list or `None` is no condition.
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
    /// The first key of the order, then the keys that decide between equals; the newest ones first without any.
    pub order: Vec<OrderBy>,
    /// Maximum number of tasks.
    pub limit: Option<i64>,
    /// Only those that come after this task where the newest come first: when it was made, and its id.
    pub older_than: Option<(i64, String)>,
    /// The number of tasks to skip before them.
    pub offset: i64,
    /// Only the tasks of this array.
    pub array: Option<String>,
    /// Leave out the tasks of arrays that do not run: the array represents them.
    pub is_folded: bool,
    /// Of one of these users.
    pub owners: Vec<String>,
    /// Only what may be seen; `None`: everything.
    pub scope: Option<Scope>,
    /// Leave out what is not a column: `doc` is empty then.
    pub without_doc: bool,
}

/// The condition on tags. An empty list is no condition.
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
    pub(crate) const fn column(self) -> &'static str {
        match self {
            Self::Created => "created_us",
            Self::Started => "started_us",
            Self::Completed => "completed_us",
            Self::LastUpdate => "last_update_us",
            Self::StatusChanged => "status_changed_us",
        }
    }
}

/// A comparison with a time.
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
    pub(crate) const fn sign(self) -> &'static str {
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
    /// The time that is compared.
    pub time: TaskTime,
    /// All must hold; microseconds since 1970.
    pub bounds: Vec<(Compare, i64)>,
    /// Tasks without that moment pass, too.
    pub or_none: bool,
}

/// A key of the order of tasks.
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

impl TaskKey {
    pub(crate) const fn may_be_null(&self) -> bool {
        match self {
            Self::Time(TaskTime::Started | TaskTime::Completed)
            | Self::Project
            | Self::ProjectName
            | Self::Parent
            | Self::Member(_) => true,
            Self::Time(_)
            | Self::Id
            | Self::Name
            | Self::Kind
            | Self::Status
            | Self::LastIteration
            | Self::Metric(..) => false,
        }
    }
}

/// The value of a line.
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
    pub(crate) const fn column(self) -> &'static str {
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
