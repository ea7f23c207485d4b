//! Which profile each request gets, on every GPU family.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod tables;

use cantle_mig::{MigError, grant};
use cantle_model::GpuRequest;
use tables::table;

fn fraction(gpu: &str, text: &str) -> String {
    grant(&table(gpu), &GpuRequest::from_fraction(text).unwrap()).unwrap().name
}

fn memory(gpu: &str, text: &str) -> Result<String, MigError> {
    grant(&table(gpu), &GpuRequest::from_memory(text).unwrap()).map(|granted| granted.name)
}

#[test]
fn fractions_by_memory_slices() {
    let h100 = "H100-80GB-SXM5/HBM3";
    for (asked, got) in [
        ("0.125", "1g.10gb"),
        ("0.25", "1g.20gb"),
        ("0.375", "3g.40gb"),
        ("0.5", "3g.40gb"),
        ("0.625", "7g.80gb"),
        ("0.875", "7g.80gb"),
        ("1", "7g.80gb"),
    ] {
        assert_eq!(fraction(h100, asked), got, "{asked}");
    }
    for (asked, got) in [("0.25", "1g.6gb"), ("0.375", "2g.12gb"), ("0.5", "2g.12gb"), ("0.625", "4g.24gb")] {
        assert_eq!(fraction("A30-24GB", asked), got, "{asked}");
    }
    let rtx = "RTX-PRO-6000-Blackwell-96GB";
    for (asked, got) in [("0.125", "1g.24gb"), ("0.25", "1g.24gb"), ("0.5", "2g.48gb"), ("0.625", "4g.96gb")]
    {
        assert_eq!(fraction(rtx, asked), got, "{asked}");
    }
}

#[test]
fn memory_by_the_smallest_that_has_it() {
    let a100 = "A100-40GB";
    for (asked, got) in [
        ("4G", "1g.5gb"),
        ("5G", "1g.5gb"),
        ("5Gi", "1g.10gb"),
        ("10G", "1g.10gb"),
        ("10Gi", "3g.20gb"),
        ("20G", "3g.20gb"),
        ("20Gi", "7g.40gb"),
    ] {
        assert_eq!(memory(a100, asked), Ok(got.to_owned()), "{asked}");
    }
    let refused = memory(a100, "40Gi").unwrap_err().to_string();
    assert_eq!(refused, "no MIG profile of this GPU has 40 GiB of memory; the largest has 39.25 GiB");
}

#[test]
fn without_the_double_memory_profile_it_is_2g() {
    let mut table = table("A100-40GB");
    table.profiles.retain(|profile| profile.name != "1g.10gb");
    let granted = grant(&table, &GpuRequest::from_memory("10G").unwrap()).unwrap();
    assert_eq!(granted.name, "2g.10gb");
}

#[test]
fn what_was_granted_and_what_it_costs() {
    let granted = grant(&table("H100-80GB-SXM5/HBM3"), &GpuRequest::from_fraction("0.375").unwrap()).unwrap();
    assert_eq!(granted.to_string(), "asked 0.375 GPU, got 3g.40gb, 4 of 8 memory slices");
    assert_eq!(granted.milli().0, 500, "quota counts what is held");
}

#[test]
fn names_are_exact_and_extra_engines_only_by_name() {
    let a100 = table("A100-40GB");
    let named = |name: &str| grant(&a100, &GpuRequest::MigProfile(name.into()));
    assert_eq!(named("1g.5gb+me").unwrap().name, "1g.5gb+me");
    assert_eq!(
        named("2g.20gb").unwrap_err().to_string(),
        "this GPU has no MIG profile 2g.20gb; it has 1g.5gb, 1g.10gb, 2g.10gb, 3g.20gb, 4g.20gb, 7g.40gb"
    );
    assert!(matches!(grant(&a100, &GpuRequest::Gpus(2)), Err(MigError::SeveralGpus(2))));
}
