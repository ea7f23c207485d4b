//! A request gives the same slice in every spelling and on every path: the command line, a ClearML task's parameters, a
//! pod's label or annotation, the name of its claim, and the amount that a claim charges.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use cantle_clearml::TaskRequest;
use cantle_kube_model::SliceName;
use cantle_kube_model::claim::{GpuSizes, claim_of, spec};
use cantle_kube_model::inject::{Rules, inject};
use cantle_model::{Bytes, GpuRequest, Milli, Share};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Memory in MiB of GPUs that there are, also such as are no whole number of granules.
const TOTALS_MIB: [u64; 8] = [8_192, 15_360, 23_034, 24_576, 40_960, 46_068, 81_559, 143_771];

fn share(request: &GpuRequest, total_mib: u64) -> Option<Share> {
    request.share_of(total_mib << 20)
}

fn through_a_task(request: GpuRequest) -> GpuRequest {
    let request = TaskRequest { gpu: Some(request), ..TaskRequest::default() };
    TaskRequest::from_hyperparams(&request.to_hyperparams()).unwrap().unwrap().gpu.unwrap()
}

fn slice_of(metadata: Value) -> SliceName {
    let spec = json!({"containers": [{"name": "c"}]});
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
    let pod = inject(&pod, &Rules::default(), "9f86d081-884c-4d65-9a2f-eaa0c55ad015").unwrap();
    claim_of(&serde_json::from_value(pod).unwrap()).unwrap().slice
}

/// The charge of a claim for the slice on such a GPU, as the node reads it back.
fn charged(slice: &SliceName, total_mib: u64) -> GpuRequest {
    let claim = spec(slice, &GpuSizes::from([(total_mib, 1)])).unwrap();
    let request = &claim["devices"]["requests"][0];
    let device = request.get("exactly").unwrap_or_else(|| &request["firstAvailable"][0]);
    let quantity = device["capacity"]["requests"]["memory"].as_str().unwrap();
    GpuRequest::Memory(quantity.parse::<Bytes>().unwrap())
}

proptest! {
    #[test]
    fn a_fraction(milli in 1u32..1000, total in prop::sample::select(&TOTALS_MIB[..])) {
        let text = Milli(milli).to_string();
        let request = GpuRequest::from_fraction(&text).unwrap();
        let wanted = share(&request, total);
        prop_assert_eq!(wanted.unwrap().milli, Milli(milli));
        prop_assert_eq!(share(&through_a_task(request), total), wanted);
        let slice = slice_of(json!({"annotations": {"gpu-fraction": &text}}));
        prop_assert_eq!(share(&slice.request([]), total), wanted);
        prop_assert_eq!(share(&charged(&slice, total), total), wanted);
    }

    /// ClearML's label knows these values and no others.
    #[test]
    fn an_eighth(
        text in prop::sample::select(&["0.125", "0.250", "0.375", "0.500", "0.625", "0.750", "0.875"][..]),
        total in prop::sample::select(&TOTALS_MIB[..]),
    ) {
        let request = GpuRequest::from_fraction(text).unwrap();
        let wanted = share(&request, total);
        prop_assert!(wanted.is_some());
        let slice = slice_of(json!({"labels": {"clearml-injector/fraction": text}}));
        prop_assert_eq!(share(&slice.request([]), total), wanted);
        prop_assert_eq!(share(&charged(&slice, total), total), wanted);
    }

    #[test]
    fn an_amount_of_memory(mib in 2u64..8_192, total in prop::sample::select(&TOTALS_MIB[..])) {
        let request = GpuRequest::from_memory(&format!("{mib}Mi")).unwrap();
        let wanted = share(&request, total);
        prop_assert!(wanted.is_some());
        prop_assert_eq!(share(&through_a_task(request), total), wanted);
        let slice = slice_of(json!({"annotations": {"gpu-memory": mib.to_string()}}));
        prop_assert_eq!(share(&slice.request([]), total), wanted);
        prop_assert_eq!(share(&charged(&slice, total), total), wanted);
    }
}

#[test]
fn an_odd_number_of_mib_is_rounded_down_to_a_granule() {
    let slice = slice_of(json!({"annotations": {"gpu-memory": "4095"}}));
    let share = share(&slice.request([]), 40_960).unwrap();
    assert_eq!(share.memory_limit_bytes, 4094 << 20);
}
