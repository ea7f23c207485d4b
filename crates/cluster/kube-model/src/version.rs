//! The version of Kubernetes, and the features that it has.

use std::fmt;
use std::str::FromStr;

use crate::VersionError;

/// A version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 1.
    pub major: u32,
    /// The number that is meant by "1.36".
    pub minor: u32,
    /// The patch.
    pub patch: u32,
}

impl Version {
    /// The first whose kubelet prepares claims of `resource.k8s.io/v1`.
    pub const KUBELET: Self = Self { major: 1, minor: 34, patch: 0 };

    /// The first whose scheduler shares every GPU of a node. The scheduler of 1.34 allocates no other GPU of a slice once
    /// the first one is full: it checks the name of the request's first device, not that of the candidate.
    pub const FLOOR: Self = Self { major: 1, minor: 35, patch: 0 };

    /// The first with all that the classic path needs: CDI devices from device plugins (1.29), admission policies, and
    /// tokens that name the node of their pod.
    pub const CLASSIC: Self = Self { major: 1, minor: 30, patch: 0 };

    /// The first whose API server selects objects of a definition by its fields without a feature gate.
    pub const SELECTABLE_FIELDS: Self = Self { major: 1, minor: 31, patch: 0 };

    /// The first whose scheduler keeps shares and partitions of one GPU apart (kubernetes#139040).
    pub const MIXED: Self = Self { major: 1, minor: 36, patch: 2 };

    /// The first where devices can be tainted without a feature gate.
    pub const TAINTS: Self = Self { major: 1, minor: 36, patch: 0 };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for Version {
    type Err = VersionError;

    /// `v1.36.2`, `v1.36.2-gke.1`, `v1.34.1+k3s1`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let numbers = text.trim_start_matches('v');
        let numbers = numbers.split(['-', '+']).next().unwrap_or_default();
        let parts: Result<Vec<u32>, _> = numbers.split('.').map(str::parse).collect();
        match parts.as_deref() {
            Ok(&[major, minor, patch]) => Ok(Self { major, minor, patch }),
            _ => Err(VersionError(text.to_owned())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_servers_give_them() {
        for (text, expected) in
            [("v1.36.2", "1.36.2"), ("v1.34.1+k3s1", "1.34.1"), ("v1.35.0-gke.1234", "1.35.0")]
        {
            assert_eq!(text.parse::<Version>().unwrap().to_string(), expected);
        }
        assert!("v1.36".parse::<Version>().is_err());
        assert!("".parse::<Version>().is_err());
        let of = |text: &str| text.parse::<Version>().unwrap();
        assert!(
            of("v1.33.9") < Version::FLOOR
                && of("v1.36.1") < Version::MIXED
                && of("v1.36.2") >= Version::MIXED
        );
    }
}
