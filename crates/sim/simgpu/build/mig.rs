//! `data/mig_profiles.json` as Rust tables, so that the driver libraries need no JSON parser.

use std::fmt::Write as _;
use std::fs;

use serde_json::Value;

pub(crate) fn tables() -> String {
    let text = fs::read_to_string("data/mig_profiles.json").expect("data/mig_profiles.json");
    let data: Value = serde_json::from_str(&text).expect("valid JSON");
    let mut out = String::from("static TABLES: &[ProfileTable] = &[\n");
    for (key, gpu) in data["gpus"].as_object().expect("gpus") {
        let _ = writeln!(
            out,
            "ProfileTable {{ key: {key:?}, units: {}, profiles: &[",
            number(gpu, "placement_units")
        );
        for p in gpu["profiles"].as_array().expect("profiles") {
            profile(&mut out, p);
        }
        out.push_str("] },\n");
    }
    out.push_str("];\n");
    out
}

fn profile(out: &mut String, p: &Value) {
    let starts = p["placement_starts"].as_array().expect("placement_starts");
    let starts: Vec<u64> = starts.iter().map(|s| s.as_u64().expect("a start")).collect();
    let _ = write!(
        out,
        "GpuInstanceProfile {{ name: {}, kind: {}, id: {}, ",
        p["profile"],
        number(p, "nvml_enum_value"),
        number(p, "profile_id")
    );
    let _ = write!(
        out,
        "compute_slices: {}, size: {}, ",
        number(p, "compute_slices"),
        number(p, "placement_size")
    );
    let _ = write!(out, "starts: &{starts:?}, max_instances: {}, ", number(p, "max_instances"));
    for (field, key) in [
        ("memory_mib", "memory_mib"),
        ("multiprocessors", "sm"),
        ("copy_engines", "copy_engines"),
        ("decoders", "nvdec"),
        ("encoders", "nvenc"),
        ("jpeg", "jpeg"),
        ("ofa", "ofa"),
    ] {
        // Some figures are not published; they are 0, and the library fills in a share of the whole.
        let _ = write!(out, "{field}: {}, ", p[key].as_u64().unwrap_or(0));
    }
    out.push_str("compute: &[");
    for c in p["compute_instance_profiles"].as_array().expect("compute_instance_profiles") {
        let _ = write!(
            out,
            "ComputeInstanceProfile {{ name: {}, id: {}, slices: {}, max_instances: {} }},",
            c["name"],
            number(c, "ci_profile_id"),
            number(c, "slices"),
            number(c, "max")
        );
    }
    out.push_str("] },\n");
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} in {value}"))
}
