//! The program `ebb-load`.

use std::process::ExitCode;

fn main() -> ExitCode {
    ebb_load::main()
}
