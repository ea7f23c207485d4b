//! cantle: the one binary.
fn main() {}
