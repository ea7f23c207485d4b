//! Backends that enforce memory limits, and the choice between them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The wanted backend of memory limits: `--enforce`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EnforceMode {
    /// The filter, and the driver's own limit where there is one.
    #[default]
    Auto,
    /// The filter alone.
    Filter,
    /// The filter and the driver's own limit; nothing starts without it. A MIG instance is enforced by the hardware and needs none.
    Driver,
}

impl EnforceMode {
    /// Its name.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Filter => "filter",
            Self::Driver => "driver",
        }
    }
}

impl fmt::Display for EnforceMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Not one of the three.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no backend of limits; it is auto, filter or driver")]
pub struct EnforceModeError(String);

impl FromStr for EnforceMode {
    type Err = EnforceModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Auto, Self::Filter, Self::Driver];
        all.into_iter().find(|mode| mode.word() == text).ok_or_else(|| EnforceModeError(text.to_owned()))
    }
}

/// A backend that enforces the memory limit of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitBackend {
    /// A MIG instance: the hardware.
    Mig,
    /// The driver, by the memory limit of the task's control group (NVML 615).
    Nvml,
    /// The kernel's controller of device memory, by a limit of the task's control group (`dmem`).
    Dmem,
    /// The filter libraries.
    Filter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_as_it_is_written() {
        for mode in [EnforceMode::Auto, EnforceMode::Filter, EnforceMode::Driver] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert_eq!(
            "nvml".parse::<EnforceMode>().unwrap_err().to_string(),
            "`nvml` is no backend of limits; it is auto, filter or driver"
        );
    }
}
