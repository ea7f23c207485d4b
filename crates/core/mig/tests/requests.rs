//! The profile that each request gets, on every GPU family.
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
fn names_are_those_of_the_driver_that_is_asked() {
    // An older driver has other names and amounts for the same places of a GB200.
    let mut older = table("GB200-186GB");
    for profile in &mut older.profiles {
        for (name, other) in [("23gb", "24gb"), ("93gb", "95gb"), ("186gb", "189gb")] {
            profile.name = profile.name.replace(name, other);
        }
    }
    let got = |request| grant(&older, &request).map(|granted| granted.name);
    assert_eq!(got(GpuRequest::from_fraction("0.125").unwrap()).unwrap(), "1g.24gb");
    assert_eq!(got(GpuRequest::from_fraction("0.5").unwrap()).unwrap(), "3g.95gb");
    assert_eq!(got(GpuRequest::Gpus(1)).unwrap(), "7g.189gb");
    let refused = got(GpuRequest::MigProfile("1g.23gb".into())).unwrap_err().to_string();
    assert!(refused.starts_with("this GPU has no MIG profile 1g.23gb; it has 1g.24gb, "), "{refused}");
}

#[test]
fn instances_that_stand_are_all_there_is() {
    let a100 = table("A100-40GB");
    let id = |name: &str| a100.profiles[a100.position(name).unwrap()].id;
    let standing = a100.of_fixed(&[(id("1g.5gb"), 6), (id("3g.20gb"), 0), (id("1g.5gb"), 4)]);
    let got = |request: &GpuRequest| grant(&standing, request).map(|granted| granted.name);
    assert_eq!(got(&GpuRequest::Gpus(1)).unwrap(), "3g.20gb", "a GPU is the largest of them");
    assert_eq!(got(&GpuRequest::from_fraction("0.125").unwrap()).unwrap(), "1g.5gb");
    assert_eq!(got(&GpuRequest::from_fraction("0.25").unwrap()).unwrap(), "3g.20gb", "there is none between");
    let refused = got(&GpuRequest::from_fraction("0.625").unwrap()).unwrap_err().to_string();
    assert_eq!(
        refused,
        "no MIG instance given to this agent has 5 of 8 memory slices; it has 1g.5gb, 3g.20gb"
    );
    let small = &standing.profiles[standing.position("1g.5gb").unwrap()];
    assert_eq!((small.max_instances, small.starts.clone()), (2, vec![6, 4]));
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
