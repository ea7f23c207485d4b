//! Reads the scheduler's decision from a claim.

use std::collections::BTreeMap;

use cantle_model::{
    AllocatedPart, Bytes, ComputeError, ComputeRequest, GRANULE_BYTES, GpuRequest, LeaseId, TaskId,
};
use k8s_openapi::api::resource::v1::{DeviceRequestAllocationResult, ResourceClaim};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::devices::{DeviceKind, Inventory, NodeDevice};
use super::parameters::ComputeParameters;
use crate::names::DRIVER;
use crate::{ClaimError, DecidedGpu, ObjectExt as _, SliceDecision};

/// Length of a UID: leases are called `<uid>-<n>`.
const UID_LEN: usize = 36;

/// One request of a claim, decided.
#[derive(Clone, Debug, PartialEq)]
pub struct DecidedRequest {
    /// The work for this machine.
    pub slice: SliceDecision,
    /// The scheduler's own words, for the answer to the kubelet.
    pub results: Vec<DeviceRequestAllocationResult>,
}

/// All requests of a claim that cantle's devices serve on the node `pool`. Nothing in it can change once it is allocated, so
/// the same claim is always read the same way.
///
/// # Errors
/// [`ClaimError`] if it is not allocated, or names what this node does not have.
pub fn decided(
    claim: &ResourceClaim,
    pool: &str,
    inventory: &Inventory,
) -> Result<Vec<DecidedRequest>, ClaimError> {
    let name = format!("{}/{}", claim.namespace().unwrap_or_default(), claim.name_any());
    let wrong = |why: String| ClaimError { claim: name.clone(), why };
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref());
    let allocation = allocation.ok_or_else(|| wrong("it is not allocated".to_owned()))?;
    let devices = allocation.devices.as_ref();
    let results = devices.and_then(|devices| devices.results.as_ref());
    let mut requests: BTreeMap<&str, Vec<&DeviceRequestAllocationResult>> = BTreeMap::new();
    for result in results.into_iter().flatten().filter(|r| r.driver == DRIVER && r.pool == pool) {
        requests.entry(&result.request).or_default().push(result);
    }
    let consumer = status.and_then(|status| status.reserved_for.as_ref()?.first());
    let task = consumer.map_or_else(|| claim.name_any(), |consumer| consumer.name.clone());
    let task = format!("{}/{task}", claim.namespace().unwrap_or_default());
    let uid = claim.uid().unwrap_or_default();
    let decided = |(at, results): (usize, Vec<&DeviceRequestAllocationResult>)| {
        let parameters = match (devices, results.first()) {
            (Some(devices), Some(first)) => ComputeParameters::of_request(devices, &first.request),
            _ => Ok(None),
        };
        let parameters = parameters.map_err(wrong)?;
        let (request, compute, gpus) = gpus(&results, inventory, parameters.as_ref()).map_err(wrong)?;
        let slice = SliceDecision {
            lease: lease_id(&uid, at),
            task: TaskId(format!("{task}/{at}")),
            name: task.clone(),
            request,
            compute,
            gpus,
        };
        Ok(DecidedRequest { slice, results: results.into_iter().cloned().collect() })
    };
    requests.into_values().enumerate().map(decided).collect()
}

/// The lease of the request at position `at` of a claim.
fn lease_id(uid: &str, at: usize) -> LeaseId {
    LeaseId(format!("{uid}-{at}"))
}

/// The UID of the claim that a lease belongs to.
pub fn claim_of(lease: &LeaseId) -> Option<&str> {
    lease.0.get(..UID_LEN)
}

fn gpus(
    results: &[&DeviceRequestAllocationResult],
    inventory: &Inventory,
    parameters: Option<&ComputeParameters>,
) -> Result<(GpuRequest, ComputeRequest, Vec<DecidedGpu>), String> {
    let mut gpus: Vec<DecidedGpu> = Vec::new();
    let mut requests = Vec::new();
    for result in results {
        let name = &result.device;
        let device = inventory.find(name);
        let device = device.ok_or_else(|| format!("this node has no device {name} now"))?;
        if gpus.iter().any(|known| known.gpu == device.gpu) {
            return Err(format!(
                "two parts of GPU {} for one container; ask for one larger part",
                device.index
            ));
        }
        let counted = request(device, result)?;
        gpus.push(DecidedGpu { gpu: device.gpu.clone(), allocated: allocated(device, &counted)? });
        requests.push(match parameters {
            None => (counted, ComputeRequest::default()),
            Some(parameters) => with_compute(device, counted, parameters)?,
        });
    }
    let first = requests.first().cloned().ok_or("nothing of it is on this node")?;
    if requests.iter().any(|request| *request != first) {
        return Err("one request cannot be parts of different size; ask for them one by one".to_owned());
    }
    let (request, compute) = first;
    let whole = request == GpuRequest::Gpus(1);
    let count = u32::try_from(gpus.len()).unwrap_or(u32::MAX);
    if compute.is_enforced() && count > 1 {
        return Err(ComputeError::SeveralGpus { mode: compute.mode, count }.to_string());
    }
    Ok((if whole { GpuRequest::Gpus(count) } else { request }, compute, gpus))
}

/// The request for memory and for compute time. The scheduler counts the greater part of the two as memory, so nothing is
/// promised that it has not counted.
fn with_compute(
    device: &NodeDevice,
    counted: GpuRequest,
    parameters: &ComputeParameters,
) -> Result<(GpuRequest, ComputeRequest), String> {
    let (slice, compute) = parameters.requests(counted.clone())?;
    // An instance is what its device is: no part of a GPU's memory and no share of its compute time.
    let Some(had) = counted.share_of(device.memory_bytes) else {
        return if slice == counted {
            Ok((slice, compute))
        } else {
            Err(format!(
                "its configuration asks for {slice}, and the claim for {counted}, which has its own memory; remove fraction"
            ))
        };
    };
    let asked = slice.share_of(device.memory_bytes);
    let asked = asked.ok_or_else(|| format!("GPU {} cannot give {slice}", device.index))?;
    let asked = asked.with_compute(compute.named_part());
    if asked.milli > had.milli || asked.memory_limit_bytes > had.memory_limit_bytes {
        return Err(format!(
            "its configuration asks for {} of GPU {}, and the claim for {}; a claim asks for as much memory as the greater part of \
             fraction and computeRequest",
            asked.milli, device.index, had.milli
        ));
    }
    Ok((slice, compute))
}

/// The part of the GPU that the scheduler counted. The node compares every slice that it creates with it.
fn allocated(device: &NodeDevice, counted: &GpuRequest) -> Result<AllocatedPart, String> {
    match &device.kind {
        DeviceKind::Mig { profile, start } => {
            Ok(AllocatedPart::Instance { profile: profile.clone(), start: *start })
        }
        DeviceKind::Shared => {
            let share = counted.share_of(device.memory_bytes);
            Ok(AllocatedPart::Share(
                share.ok_or_else(|| format!("GPU {} cannot give {counted}", device.index))?,
            ))
        }
    }
}

fn request(device: &NodeDevice, result: &DeviceRequestAllocationResult) -> Result<GpuRequest, String> {
    match &device.kind {
        DeviceKind::Mig { profile, .. } => Ok(GpuRequest::MigProfile(profile.clone())),
        DeviceKind::Shared => {
            let consumed = result.consumed_capacity.as_ref().and_then(|all| all.get("memory"));
            let bytes = consumed.and_then(bytes).filter(|bytes| *bytes > 0);
            let bytes = bytes.ok_or_else(|| format!("device {} without an amount of memory", device.name))?;
            let is_whole = bytes > device.memory_bytes - GRANULE_BYTES;
            Ok(if is_whole { GpuRequest::Gpus(1) } else { GpuRequest::Memory(Bytes(bytes)) })
        }
    }
}

/// Bytes of a quantity: `20Gi`, `4G`, or a bare number.
pub fn bytes(quantity: &Quantity) -> Option<u64> {
    quantity.0.parse().ok().or_else(|| Some(quantity.0.parse::<Bytes>().ok()?.0))
}

#[cfg(test)]
mod tests {
    use cantle_model::{ComputeMode, GpuUuid, Milli, Share};

    use super::super::devices::tests::offers;
    use super::*;
    use crate::Version;

    const UID: &str = "988b2be4-7c39-4b2e-8288-fcde2325765c";

    fn claim(results: &[(&str, &str, Option<&str>)]) -> ResourceClaim {
        let results: Vec<_> = results
            .iter()
            .map(|(request, device, memory)| {
                let mut result = serde_json::json!({"request": request, "driver": DRIVER, "pool": "n1", "device": device});
                if let Some(memory) = memory {
                    result["consumedCapacity"] = serde_json::json!({"memory": memory});
                }
                result
            })
            .chain([serde_json::json!({"request": "nic", "driver": "nic.example", "pool": "n1", "device": "eth0"})])
            .collect();
        serde_json::from_value(serde_json::json!({
            "metadata": {"name": "c", "namespace": "team", "uid": UID},
            "spec": {},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "p", "uid": "x"}],
            },
        }))
        .unwrap()
    }

    fn inventory() -> Inventory {
        Inventory::of(&offers(2, true, true), Version::MIXED)
    }

    #[test]
    fn a_share_is_the_memory_that_the_scheduler_counted() {
        let read = decided(&claim(&[("gpu", "gpu-1-shared", Some("40Gi"))]), "n1", &inventory()).unwrap();
        let [decided] = read.as_slice() else { panic!("{read:?}") };
        assert_eq!(decided.slice.request, GpuRequest::Memory(Bytes(40 << 30)));
        let half = AllocatedPart::Share(Share { milli: Milli(500), memory_limit_bytes: 40 << 30 });
        assert_eq!(decided.slice.gpus, [DecidedGpu { gpu: GpuUuid("GPU-1".into()), allocated: half }]);
        assert_eq!(
            (decided.slice.name.as_str(), decided.slice.lease.0.as_str()),
            ("team/p", &*format!("{UID}-0"))
        );
        assert_eq!(claim_of(&decided.slice.lease), Some(UID));
    }

    #[test]
    fn several_gpus_and_an_instance() {
        let whole = Some("80Gi");
        let two =
            [("a", "gpu-0-shared", whole), ("a", "gpu-1-shared", whole), ("b", "gpu-1-mig-3g-40gb-4", None)];
        let two = claim(&two);
        let read = decided(&two, "n1", &inventory()).unwrap();
        assert_eq!(read[0].slice.request, GpuRequest::Gpus(2));
        assert_eq!(read[1].slice.request, GpuRequest::MigProfile("3g.40gb".into()));
        assert_eq!(read[1].slice.gpus[0].allocated.start(), Some(4));
        assert!(decided(&two, "n2", &inventory()).unwrap().is_empty(), "another node's");
    }

    fn configured(memory: &str, parameters: &serde_json::Value) -> Result<Vec<DecidedRequest>, ClaimError> {
        configured_of(("gpu/m81920", "gpu-0-shared", Some(memory)), parameters)
    }

    fn configured_of(
        result: (&str, &str, Option<&str>),
        parameters: &serde_json::Value,
    ) -> Result<Vec<DecidedRequest>, ClaimError> {
        let mut claim = serde_json::to_value(claim(&[result])).unwrap();
        let opaque = serde_json::json!({"driver": DRIVER, "parameters": parameters});
        let config = serde_json::json!([{"source": "FromClaim", "requests": ["gpu"], "opaque": opaque}]);
        claim["status"]["allocation"]["devices"]["config"] = config;
        decided(&serde_json::from_value(claim).unwrap(), "n1", &inventory())
    }

    #[test]
    fn a_share_of_compute_comes_with_its_part_of_the_memory() {
        let said = serde_json::json!({"compute": "fair", "computeRequest": "0.75", "fraction": "0.25"});
        let read = configured("60Gi", &said).unwrap();
        let slice = &read[0].slice;
        assert_eq!(slice.request, GpuRequest::Fraction(Milli(250).into()));
        let asked = (slice.compute.mode, slice.compute.request, slice.compute.limit);
        assert_eq!(asked, (ComputeMode::Fair, Some(Milli(750)), None));
        let plain = configured("20Gi", &serde_json::json!({"compute": "strict"})).unwrap();
        assert_eq!(plain[0].slice.request, GpuRequest::Memory(Bytes(20 << 30)));
        assert_eq!(plain[0].slice.compute.mode, ComputeMode::Strict);
    }

    #[test]
    fn nobody_is_promised_what_the_scheduler_has_not_counted() {
        let says = |memory: &str, parameters: serde_json::Value| {
            configured(memory, &parameters).unwrap_err().to_string()
        };
        let much = says("20Gi", serde_json::json!({"compute": "fair", "computeRequest": "0.75"}));
        assert!(much.contains("asks for 0.75 of GPU 0, and the claim for 0.25"), "{much}");
        let memory = says("20Gi", serde_json::json!({"compute": "fair", "fraction": "0.5"}));
        assert!(memory.contains("asks for 0.5 of GPU 0, and the claim for 0.25"), "{memory}");
        let below = serde_json::json!({"compute": "fair", "computeRequest": "0.2", "computeLimit": "0.1"});
        assert!(says("20Gi", below).contains("limit 0.1 is below the compute request 0.2"));
        assert!(
            says("20Gi", serde_json::json!({"compute": "fast"}))
                .contains("it has compute (even, fair or strict)")
        );
        assert!(
            says("20Gi", serde_json::json!({"compute": "fair", "share": 1}))
                .contains("unknown field `share`")
        );
        assert!(says("20Gi", serde_json::json!({"compute": "fair", "fraction": "1.5"})).contains("below 1"));
    }

    #[test]
    fn an_instance_never_becomes_a_larger_one() {
        let instance = ("gpu", "gpu-1-mig-3g-40gb-4", None);
        for fraction in ["0.9", "0.5", "0.125"] {
            let parameters = serde_json::json!({"compute": "even", "fraction": fraction});
            let refused = configured_of(instance, &parameters).unwrap_err().to_string();
            assert!(
                refused.contains(
                    "and the claim for a 3g.40gb MIG instance, which has its own memory; remove fraction"
                ),
                "{refused}"
            );
        }
        let plain = configured_of(instance, &serde_json::json!({"compute": "even"})).unwrap();
        assert_eq!(plain[0].slice.request, GpuRequest::MigProfile("3g.40gb".into()));
        let place = AllocatedPart::Instance { profile: "3g.40gb".into(), start: 4 };
        assert_eq!(plain[0].slice.gpus[0].allocated, place);
    }

    #[test]
    fn what_can_not_be_carried_out_is_said() {
        let says = |results: &[(&str, &str, Option<&str>)]| {
            decided(&claim(results), "n1", &inventory()).unwrap_err().to_string()
        };
        assert_eq!(says(&[("a", "gpu-7", None)]), "claim team/c: this node has no device gpu-7 now");
        let twice = says(&[("a", "gpu-0-shared", Some("1Gi")), ("a", "gpu-0-shared", Some("2Gi"))]);
        assert_eq!(twice, "claim team/c: two parts of GPU 0 for one container; ask for one larger part");
        assert!(says(&[("a", "gpu-0-shared", None)]).ends_with("without an amount of memory"));
        let unequal = says(&[("a", "gpu-0-shared", Some("1Gi")), ("a", "gpu-1-shared", Some("80Gi"))]);
        assert!(unequal.contains("different size"), "{unequal}");
    }

    /// An odd mebibyte is never allocated; a claim for all the others has the whole GPU.
    #[test]
    fn all_of_the_memory_is_the_whole_gpu() {
        let mut inventory = inventory();
        inventory.devices[0].memory_bytes = 81_559 << 20;
        let request = |memory| {
            let read = decided(&claim(&[("gpu", "gpu-0-shared", Some(memory))]), "n1", &inventory).unwrap();
            read[0].slice.request.clone()
        };
        assert_eq!(request("81558Mi"), GpuRequest::Gpus(1));
        assert_eq!(request("81556Mi"), GpuRequest::Memory(Bytes(81_556 << 20)));
    }
}
