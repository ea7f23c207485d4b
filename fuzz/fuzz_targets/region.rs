//! The accounting region against a tenant that writes anything; libFuzzer chooses the bytes.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../hostile_tenant.rs"]
mod hostile_tenant;

fuzz_target!(|data: &[u8]| hostile_tenant::live(data));
