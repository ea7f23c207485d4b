//! The page of rights, as the tests read it.

const PAGE: &str = include_str!("../../../../../../docs/reference/rights.md");

/// A need as the page words it.
#[derive(Debug)]
pub(super) enum Need {
    Free,
    NoRun,
    Everywhere(Vec<String>),
    Object { act: String, is_task: bool, path: String },
    Project { right: String, path: String, always: bool },
    Copy,
}

fn need(text: &str) -> Need {
    let path = || text.split('`').nth(1).unwrap_or_default().to_owned();
    let first = || text.split(' ').next().unwrap().to_owned();
    if text == "not a running task" {
        Need::NoRun
    } else if text.starts_with("manage for a priority")
        || text.starts_with("a key")
        || text.starts_with("the answer")
        || text.starts_with("about the caller")
        || text.starts_with("an agent: ")
    {
        Need::Free
    } else if let Some(rights) = text.strip_suffix(" in all projects") {
        Need::Everywhere(rights.split(" or ").map(str::to_owned).collect())
    } else if text.contains(", or in that of the task") {
        Need::Copy
    } else if text.contains(" the task `") || text.contains(" the model `") {
        Need::Object { act: first(), is_task: text.contains(" the task `"), path: path() }
    } else if text.contains(" in the project ") {
        let always = text.contains("or in all projects");
        Need::Project { right: first(), path: path(), always }
    } else {
        panic!("the page says something that this test does not know: {text}")
    }
}

pub(super) fn page() -> Vec<(&'static str, Vec<Need>)> {
    let rows = PAGE.lines().skip_while(|line| !line.starts_with("| endpoint |")).skip(2);
    let rows = rows.take_while(|line| line.starts_with("| `"));
    rows.map(|row| {
        let mut cells = row.split(" | ");
        let endpoint = cells.next().unwrap().trim_matches(['|', ' ', '`']);
        (endpoint, cells.next().unwrap().split("; ").map(need).collect())
    })
    .collect()
}
