//! The parameters of ClearML's `get_all` and `get_all_ex`, by the kind of condition that each is.

/// The conditions that the list of one kind of object supports. A name that ends in `*` means all that begin with it.
#[derive(Debug)]
pub(crate) struct Spec {
    /// Not conditions, and of this kind of object only: see [`Spec::is_plain`].
    plain: &'static [&'static str],
    /// A pattern of which the field must hold a match.
    pub(super) patterns: &'static [&'static str],
    /// Other names of fields: the alias and the field.
    aliases: &'static [(&'static str, &'static str)],
    /// Words, with ClearML's operators.
    pub(super) lists: &'static [&'static str],
    /// Moments.
    pub(super) times: &'static [&'static str],
    /// Least and greatest number.
    pub(super) ranges: &'static [&'static str],
    /// A value that the field must have.
    pub(super) exact: &'static [&'static str],
    /// The fields that `search_text` searches.
    pub(super) text: &'static [&'static str],
    /// Members of the object, for patterns on several fields.
    pub(crate) fields: &'static [&'static str],
    /// Parameters that this server does not support, and accepts if they are `false`.
    pub(super) switches: &'static [&'static str],
    /// Objects with the tag `hidden` are omitted unless requested.
    pub(super) hides: bool,
}

/// The page, the fields, and the order: of every list.
const PAGING: [&str; 7] =
    ["only_fields", "page", "page_size", "order_by", "scroll_id", "refresh_scroll", "size"];

impl Spec {
    /// Whether a parameter is no condition. The caller reads it.
    pub(super) fn is_plain(&self, field: &str) -> bool {
        PAGING.contains(&field) || self.plain.contains(&field)
    }

    /// The field that this name means.
    pub(super) fn field<'a>(&self, name: &'a str) -> &'a str {
        self.aliases.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, field)| field)
    }
}

/// Whether a field has one of these names.
pub(super) fn is_one_of(field: &str, names: &[&str]) -> bool {
    names.iter().any(|name| match name.strip_suffix('*') {
        Some(head) => field.starts_with(head) && field.len() > head.len(),
        None => field == *name,
    })
}

pub(crate) const TASKS: Spec = Spec {
    plain: &["search_hidden", "include_subprojects", "allow_public"],
    patterns: &["name", "comment", "report"],
    // By this name the SDK's triggers on data sets ask for types.
    aliases: &[("task_types", "type")],
    lists: &[
        "id",
        "user",
        "tags",
        "system_tags",
        "type",
        "status",
        "project",
        "parent",
        "execution.queue",
        "models.input.model",
        "hyperparams.*",
    ],
    times: &["created", "started", "completed", "status_changed", "last_update", "last_change"],
    ranges: &["active_duration", "last_iteration", "last_metrics.*"],
    exact: &["runtime.*"],
    text: &[
        "id",
        "name",
        "comment",
        "models.input.model",
        "models.output.model",
        "script.repository",
        "script.entry_point",
    ],
    fields: &[
        "id",
        "name",
        "type",
        "status",
        "status_reason",
        "status_message",
        "comment",
        "user",
        "company",
        "project",
        "parent",
        "tags",
        "system_tags",
        "created",
        "started",
        "completed",
        "last_update",
        "last_change",
        "status_changed",
        "last_worker",
        "last_iteration",
        "script",
        "execution",
        "container",
        "hyperparams",
        "configuration",
        "runtime",
        "models",
        "output",
        "last_metrics",
        "report",
    ],
    switches: &[],
    hides: true,
};

pub(crate) const MODELS: Spec = Spec {
    plain: &["include_subprojects", "allow_public", "search_hidden"],
    patterns: &["name", "comment"],
    aliases: &[],
    lists: &[
        "id",
        "user",
        "tags",
        "system_tags",
        "framework",
        "uri",
        "project",
        "task",
        "parent",
        "metadata.*",
    ],
    times: &["created", "last_update", "last_change"],
    ranges: &["last_iteration", "last_metrics.*"],
    exact: &["ready"],
    text: &["id", "name", "comment", "parent", "task", "project"],
    fields: &[
        "id",
        "name",
        "comment",
        "user",
        "company",
        "project",
        "parent",
        "task",
        "tags",
        "system_tags",
        "created",
        "last_update",
        "uri",
        "framework",
        "labels",
        "design",
        "metadata",
        "ready",
    ],
    switches: &["include_stats"],
    hides: false,
};

pub(crate) const PROJECTS: Spec = Spec {
    plain: &["search_hidden", "shallow_search", "allow_public", "non_public"],
    patterns: &["name", "basename", "description"],
    aliases: &[],
    lists: &["id", "tags", "system_tags", "parent", "path"],
    times: &["created", "last_update"],
    ranges: &[],
    exact: &[],
    text: &["id", "name", "description"],
    fields: &[
        "id",
        "name",
        "basename",
        "description",
        "user",
        "company",
        "tags",
        "system_tags",
        "created",
        "last_update",
        "parent",
        "path",
        "default_output_destination",
    ],
    switches: &["include_stats", "include_dataset_stats", "check_own_contents", "stats_with_children"],
    hides: true,
};

pub(crate) const QUEUES: Spec = Spec {
    plain: &["search_hidden", "max_task_entries", "allow_public"],
    patterns: &["name"],
    aliases: &[],
    lists: &["id", "tags", "system_tags", "metadata.*"],
    times: &["created", "last_update"],
    ranges: &[],
    exact: &[],
    text: &["id", "name"],
    fields: &[
        "id",
        "name",
        "display_name",
        "user",
        "company",
        "tags",
        "system_tags",
        "created",
        "last_update",
        "metadata",
    ],
    switches: &[],
    hides: true,
};
