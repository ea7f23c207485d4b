//! The directories where distributions and installers put the driver's files.

use std::fmt;
use std::str::FromStr;

/// One way to install a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Debian and Ubuntu: `/usr/lib/x86_64-linux-gnu`, 32-bit copies in `/usr/lib/i386-linux-gnu`.
    #[default]
    Debian,
    /// Red Hat, SUSE, Fedora: `/usr/lib64`, 32-bit copies in `/usr/lib`.
    Rhel,
    /// NVIDIA's GPU Operator: a root file system of the driver's own at `/run/nvidia/driver`, which the loader does not know.
    DriverContainer,
    /// Windows' subsystem for Linux: `/usr/lib/wsl/lib`, and `/dev/dxg` is the only device node.
    Wsl,
    /// Flatcar: `/opt/nvidia/current`, which the loader knows.
    Flatcar,
    /// Container-Optimized OS on GKE: `/home/kubernetes/bin/nvidia`, which the loader does not know.
    Cos,
    /// NixOS: `/run/opengl-driver`, which its programs know and the loader does not.
    NixOs,
}

impl Layout {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Debian, Self::Rhel, Self::DriverContainer, Self::Wsl, Self::Flatcar, Self::Cos, Self::NixOs];

    const fn name(self) -> &'static str {
        match self {
            Self::Debian => "debian",
            Self::Rhel => "rhel",
            Self::DriverContainer => "driver-container",
            Self::Wsl => "wsl",
            Self::Flatcar => "flatcar",
            Self::Cos => "cos",
            Self::NixOs => "nixos",
        }
    }

    /// The directory of the libraries.
    pub(crate) fn library_dir(self) -> String {
        let arch = std::env::consts::ARCH;
        match self {
            Self::Debian => format!("/usr/lib/{arch}-linux-gnu"),
            Self::Rhel => "/usr/lib64".to_owned(),
            Self::DriverContainer => format!("/run/nvidia/driver/usr/lib/{arch}-linux-gnu"),
            Self::Wsl => "/usr/lib/wsl/lib".to_owned(),
            Self::Flatcar => "/opt/nvidia/current/usr/lib64".to_owned(),
            Self::Cos => "/home/kubernetes/bin/nvidia/lib64".to_owned(),
            Self::NixOs => "/run/opengl-driver/lib".to_owned(),
        }
    }

    /// The directory of the 32-bit copies, where the layout has them.
    pub(crate) const fn small_library_dir(self) -> Option<&'static str> {
        match self {
            Self::Debian => Some("/usr/lib/i386-linux-gnu"),
            Self::Rhel => Some("/usr/lib"),
            Self::DriverContainer | Self::Wsl | Self::Flatcar | Self::Cos | Self::NixOs => None,
        }
    }

    /// The directory of the driver's programs.
    pub(crate) const fn program_dir(self) -> &'static str {
        match self {
            Self::Debian | Self::Rhel => "/usr/bin",
            Self::DriverContainer => "/run/nvidia/driver/usr/bin",
            Self::Wsl => "/usr/lib/wsl/lib",
            Self::Flatcar => "/opt/nvidia/current/usr/bin",
            Self::Cos => "/home/kubernetes/bin/nvidia/bin",
            Self::NixOs => "/run/current-system/sw/bin",
        }
    }

    /// Whether the dynamic loader finds the libraries by itself.
    pub(crate) fn is_in_loader_cache(self) -> bool {
        !matches!(self, Self::DriverContainer | Self::Cos | Self::NixOs)
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = Self::ALL.map(Self::name).join(", ");
        let found = Self::ALL.into_iter().find(|layout| layout.name() == text);
        found.ok_or_else(|| format!("\"{text}\" is not a layout of a driver; known: {names}"))
    }
}
