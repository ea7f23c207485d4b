//! The program. All code is in the library, so that linking it for other systems compiles nothing again (`cargo xtask dist
//! packages`).

use std::process::ExitCode;

fn main() -> ExitCode {
    cantle_cli::main()
}
