//! Identifiers. All are opaque text from elsewhere (ClearML's ids are 32 hex digits); the types prevent mixing them up.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub String);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }
    };
}

id!(
    /// A task, as the server names it.
    TaskId
);
id!(
    /// A queue, as the server names it.
    QueueId
);
id!(
    /// One grant of one or more slices to one task on one node.
    LeaseId
);
