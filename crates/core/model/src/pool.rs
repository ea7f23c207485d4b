//! Pools: named sets of GPUs, by node and by model.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The longest name of a pool, in bytes.
const MOST_NAME_BYTES: usize = 63;

/// A named set of GPUs: those of these nodes that are of these models. Patterns are globs (`*`, `?`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pool {
    /// Its name, unique: letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Patterns of node names; empty: every node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<String>,
    /// Patterns of GPU models; empty: every model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<String>,
}

impl Pool {
    /// Does the GPU of `model` on `node` belong to it?
    #[must_use]
    pub fn has(&self, node: &str, model: &str) -> bool {
        let any = |patterns: &[String], text: &str| {
            patterns.is_empty() || patterns.iter().any(|pattern| glob(pattern, text))
        };
        any(&self.nodes, node) && any(&self.models, model)
    }

    /// Can it be defined like this?
    ///
    /// # Errors
    /// The name cannot be one, or no pattern selects GPUs.
    pub fn check(&self) -> Result<(), PoolError> {
        let is_allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        let Self { name, nodes, models } = self;
        if name.is_empty() || name == "none" || name.len() > MOST_NAME_BYTES || !name.chars().all(is_allowed)
        {
            return Err(PoolError::Name(name.clone()));
        }
        if nodes.is_empty() && models.is_empty() {
            return Err(PoolError::NoPattern(name.clone()));
        }
        if nodes.iter().chain(models).any(|pattern| pattern.trim().is_empty()) {
            return Err(PoolError::EmptyPattern(name.clone()));
        }
        Ok(())
    }
}

/// `a: nodes gpu-a*, models *A100*`.
impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |what: &str, patterns: &[String]| {
            (!patterns.is_empty()).then(|| format!("{what} {}", patterns.join(" ")))
        };
        let parts = [part("nodes", &self.nodes), part("models", &self.models)];
        write!(f, "{}: {}", self.name, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The names of the pools that the GPU of `model` on `node` belongs to, in the order of `pools`.
#[must_use]
pub fn pools_of(pools: &[Pool], node: &str, model: &str) -> Vec<String> {
    pools.iter().filter(|pool| pool.has(node, model)).map(|pool| pool.name.clone()).collect()
}

/// Why a pool cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// Not a name.
    #[error(
        "\"{0}\" is no name of a pool; use 1 to {MOST_NAME_BYTES} letters, digits, '-', '_' and '.', but not \"none\""
    )]
    Name(String),
    /// It would have every GPU.
    #[error("pool {0} names neither nodes nor models; give at least one pattern of either")]
    NoPattern(String),
    /// A pattern that matches nothing.
    #[error("pool {0} has an empty pattern; give the name of a node or model, or a glob such as 'gpu-a*'")]
    EmptyPattern(String),
}

/// A project's tasks use GPUs of these pools only.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolRule {
    /// The project; empty: the rule is of the task itself, which is bound to GPUs, and these are named like pools.
    pub project: String,
    /// Names of pools; a GPU must be in at least one of them.
    pub pools: Vec<String>,
}

impl PoolRule {
    /// May a GPU that is in the pools `of_gpu` be used?
    #[must_use]
    pub fn allows(&self, of_gpu: &[String]) -> bool {
        self.pools.iter().any(|pool| of_gpu.contains(pool))
    }
}

/// `project a may use the pools x, y`, `it is bound to GPU-1`.
impl fmt::Display for PoolRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.project.is_empty() {
            return write!(f, "it is bound to {}", self.pools.join(" or "));
        }
        let word = if self.pools.len() == 1 { "pool" } else { "pools" };
        write!(f, "project {} may use the {word} {}", self.project, self.pools.join(", "))
    }
}

/// Does a pattern with `*` and `?` match the whole text? After a mismatch only the last `*` can help, so it is quick.
#[must_use]
pub fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star_p, star_t)) = star else {
                    return false;
                };
                star = Some((star_p, star_t + 1));
                p = star_p + 1;
                t = star_t + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_the_whole_text() {
        assert!(glob("node1:gpu*", "node1:gpu2.25a"));
        assert!(glob("node1:gpu*", "node1:gpu"));
        assert!(!glob("node1:gpu*", "node1:dgpu0-2"));
        assert!(glob("*", "") && glob("a*b*c", "axxbyyc") && glob("?b", "ab") && !glob("?b", "b"));
        assert!(!glob("", "x") && glob("", ""));
        let long = "a".repeat(20_000);
        assert!(!glob("*a*a*a*b", &long), "and that quickly");
    }

    fn pool(nodes: &[&str], models: &[&str]) -> Pool {
        let owned = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
        Pool { name: "a".to_owned(), nodes: owned(nodes), models: owned(models) }
    }

    #[test]
    fn a_gpu_belongs_by_node_and_by_model() {
        let both = pool(&["gpu-a*", "box"], &["*A100*"]);
        assert!(both.has("gpu-a7", "NVIDIA A100-SXM4-40GB") && both.has("box", "A100"));
        assert!(!both.has("gpu-b7", "A100") && !both.has("box", "H100"));
        assert!(pool(&["box"], &[]).has("box", "anything") && pool(&[], &["H100"]).has("any", "H100"));
        let pools = [both, Pool { name: "b".to_owned(), ..pool(&[], &["H*"]) }];
        assert_eq!(pools_of(&pools, "box", "H100"), ["b"]);
        assert!(pools_of(&pools, "other", "T4").is_empty());
    }

    #[test]
    fn a_pool_needs_a_name_and_a_pattern() {
        assert_eq!(pool(&["x"], &[]).check(), Ok(()));
        let error = |pool: Pool| pool.check().unwrap_err().to_string();
        assert!(error(pool(&[], &[])).contains("pool a names neither nodes nor models"));
        assert!(error(pool(&[" "], &[])).contains("pool a has an empty pattern"));
        for name in ["", "none", "a b", "a,b", &"x".repeat(64)] {
            let bad = Pool { name: name.to_owned(), ..pool(&["x"], &[]) };
            assert!(error(bad).contains("is no name of a pool"), "{name}");
        }
    }

    #[test]
    fn one_pool_of_a_rule_is_enough() {
        let rule = PoolRule { project: "x".to_owned(), pools: vec!["a".to_owned(), "b".to_owned()] };
        assert!(rule.allows(&["b".to_owned(), "c".to_owned()]) && !rule.allows(&["c".to_owned()]));
        assert_eq!(rule.to_string(), "project x may use the pools a, b");
        assert_eq!(
            PoolRule { pools: vec!["a".to_owned()], ..rule }.to_string(),
            "project x may use the pool a"
        );
    }
}
