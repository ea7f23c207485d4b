//! `cantle check …`: checks something other than this machine, and reports what it lacks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use cantle_kube::{Part, Probe, Survey, SurveyedNode, Version};
use cantle_model::counted;
use clap::{Args, Subcommand};

use crate::cmd::machine::checkup::{Checkup, Severity, good, not, report};
use crate::context::{CommandResult, Context, runtime};

/// `cantle check …`
#[derive(Subcommand, Debug)]
pub(crate) enum CheckCommand {
    /// Check a cluster: whether cantle can run there, what is missing, and how to fix it
    Kubernetes(KubernetesArgs),
}

/// `cantle check kubernetes`
#[derive(Args, Debug)]
pub(crate) struct KubernetesArgs {
    /// Kubeconfig of the cluster, as for kubectl [default: the cluster of this pod, or $KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
}

/// Exit code 0 if pods could get slices, else 7.
pub(crate) fn check(context: &Context, command: CheckCommand) -> CommandResult {
    let CheckCommand::Kubernetes(args) = command;
    let survey = runtime()?.block_on(async {
        let client = cantle_kube::connect(args.kubeconfig.as_deref()).await?;
        cantle_kube::survey(&client).await
    })?;
    Ok(report(context.printer, &checkups(&survey)))
}

fn checkups(survey: &Survey) -> Vec<Checkup> {
    let mut all = vec![path(survey)];
    all.extend(gates(survey));
    all.extend(engines(&survey.nodes));
    all.extend(kubelets(survey));
    all.extend(device_plugin(survey));
    all.extend(fractioning(survey));
    all.extend(parts(&survey.parts));
    all.push(devices(survey));
    all.push(injector(survey));
    all.extend(overlooked(survey));
    all.extend(held(survey));
    all.extend(quotas(survey));
    all
}

/// Maximum number of pods that are named.
const NAMED: usize = 3;

/// `4 pods (a/b, a/c, a/d, …)`
fn named(pods: &[String]) -> String {
    let named = pods.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    let more = if pods.len() > NAMED { ", …" } else { "" };
    format!("{} ({named}{more})", counted(pods.len(), "pod"))
}

fn held(survey: &Survey) -> Option<Checkup> {
    if survey.held.is_empty() {
        return None;
    }
    let found =
        format!("{}: no replica of the injector removes the gate cantle.dev/packing", named(&survey.held));
    let hint = "start the injector: kubectl --namespace cantle-system get pods -l app.kubernetes.io/component=webhook; \
        docs/kubernetes.md, Unavailable injector, shows how to let such a pod go";
    Some(not(Severity::Bad, "held pods", found, hint))
}

fn overlooked(survey: &Survey) -> Vec<Checkup> {
    let judged = |(why, pods): (&String, &Vec<String>)| {
        let found = format!("{}: {why}", named(pods));
        let hint = "docs/kubernetes.md, How to ask: change what makes these pods, and make them again";
        not(Severity::Warning, "pods", found, hint)
    };
    survey.overlooked.iter().map(judged).collect()
}

fn quotas(survey: &Survey) -> Option<Checkup> {
    if survey.void_quotas.is_empty() || survey.injector.is_none() {
        return None;
    }
    let found = format!(
        "{} of requests.nvidia.com/gpu: not counted for pods with slices",
        survey.void_quotas.join(", ")
    );
    let hint = "docs/kubernetes.md, Quotas: a quota without scopes is counted, where webhook.packing is on or the path is classic";
    Some(not(Severity::Warning, "quotas", found, hint))
}

fn path(survey: &Survey) -> Checkup {
    let version = survey.version;
    let said = |what: &str| format!("Kubernetes {version}: {what}");
    if version < Version::CLASSIC {
        let hint = format!("upgrade the cluster to {} or newer, better {}", Version::CLASSIC, Version::MIXED);
        return not(Severity::Bad, "path", said("too old"), &hint);
    }
    if survey.is_classic {
        return good("path", said("classic, by cantle's own scheduler and device plugin"));
    }
    if version < Version::FLOOR || !survey.has_dra {
        let hint = "install the chart with path=classic (docs/kubernetes-classic.md)";
        let severity = if survey.parts.is_empty() { Severity::Warning } else { Severity::Bad };
        return not(severity, "path", said("no claims on shares of GPUs; the classic path fits"), hint);
    }
    if version < Version::MIXED {
        let hint =
            format!("upgrade to {} to mix shares, whole GPUs and MIG instances on a GPU", Version::MIXED);
        return not(Severity::Warning, "path", said("claims (DRA), each GPU as one kind only"), &hint);
    }
    good("path", said("claims (DRA): shares, whole GPUs and MIG instances mixed"))
}

/// The features of the API server that each kind of device needs.
const GATES: [(&str, &str); 3] = [
    ("DRAConsumableCapacity", "shares of a GPU"),
    ("DRAPartitionableDevices", "MIG instances"),
    ("DRAExtendedResource", "MIG instances under limits (nvidia.com/mig-…)"),
];

fn gates(survey: &Survey) -> Vec<Checkup> {
    if survey.is_classic {
        return Vec::new();
    }
    let of = |(gate, what): (&str, &str)| match survey.gates.get(gate) {
        Some(true) => Some(good("feature gate", gate)),
        Some(false) => {
            let hint = format!(
                "{what} need it: --feature-gates={gate}=true for API server, scheduler, controller manager and kubelets"
            );
            Some(not(Severity::Bad, "feature gate", format!("{gate} is off"), &hint))
        }
        None => None,
    };
    GATES.into_iter().filter_map(of).collect()
}

/// Can the engine give devices by name (CDI)?
fn engines(nodes: &[SurveyedNode]) -> Vec<Checkup> {
    if nodes.is_empty() {
        return vec![not(Severity::Bad, "nodes", "none", "join nodes with GPUs to the cluster")];
    }
    let judged = |(engine, nodes): (String, usize)| {
        let found = format!("{engine} on {}", counted(nodes, "node"));
        let (name, version) = engine.split_once("://").unwrap_or((&engine, ""));
        let mut numbers = version.trim_start_matches('v').split('.').map(|part| part.parse().unwrap_or(0u32));
        let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
        match name {
            "containerd" if version >= (2, 0) => good("engine", found),
            "containerd" if version >= (1, 7) => {
                let hint = "CDI is off there unless its configuration has enable_cdi = true, section \
                            plugins.\"io.containerd.grpc.v1.cri\"";
                not(Severity::Warning, "engine", found, hint)
            }
            "cri-o" if version >= (1, 23) => good("engine", found),
            _ => {
                let hint =
                    "slices are given as CDI devices: use containerd 1.7 or newer, or CRI-O 1.23 or newer";
                not(Severity::Bad, "engine", found, hint)
            }
        }
    };
    tally(nodes, |node| node.engine.clone()).into_iter().map(judged).collect()
}

/// A kubelet may be older than its API server.
fn kubelets(survey: &Survey) -> Option<Checkup> {
    let floor = if survey.is_classic { Version::CLASSIC } else { Version::KUBELET };
    let is_old = |node: &&SurveyedNode| node.kubelet.parse::<Version>().is_ok_and(|version| version < floor);
    let old = survey.nodes.iter().filter(is_old).count();
    let hint = format!("their pods cannot have slices: upgrade them to {floor} or newer");
    let found = format!("{} with a kubelet older than {floor}", counted(old, "node"));
    (old > 0).then(|| not(Severity::Warning, "kubelet", found, &hint))
}

fn device_plugin(survey: &Survey) -> Vec<Checkup> {
    let mut by_resource: BTreeMap<&str, Vec<&SurveyedNode>> = BTreeMap::new();
    for node in &survey.nodes {
        node.nvidia.keys().for_each(|key| by_resource.entry(key).or_default().push(node));
    }
    // Pods that request MIG instances by limits get claims, and the kubelet takes no part in that.
    let judged = |(resource, nodes): (&str, Vec<&SurveyedNode>)| {
        let both = nodes.iter().filter(|node| node.is_published && !node.is_reserving).count();
        let found = format!("gives out {resource} on {}", counted(nodes.len(), "node"));
        if both == 0 && survey.takes_mig && resource.starts_with("nvidia.com/mig-") {
            let found = format!("{found}, but pods that ask for it are taken to cantle");
            let hint =
                "install the chart with webhook.migResources=false; annotation mig-profile still asks cantle";
            return not(Severity::Warning, "NVIDIA's device plugin", found, hint);
        }
        if both == 0 {
            return good("NVIDIA's device plugin", found);
        }
        let found = format!("{found}, cantle the same GPUs on {both} of them");
        let hint = "one of the two per node: keep the plugin away from cantle's nodes (its nodeSelector), or cantle from its \
                    (node.nodeSelector); or let cantle reserve what it uses (path=classic, reservation.enabled)";
        not(Severity::Bad, "NVIDIA's device plugin", found, hint)
    };
    by_resource.into_iter().map(judged).collect()
}

fn fractioning(survey: &Survey) -> Option<Checkup> {
    let theirs: Vec<String> =
        survey.nodes.iter().filter(|node| node.is_fractioned).map(|node| node.name.clone()).collect();
    let both = survey.nodes.iter().filter(|node| node.is_fractioned && node.is_published).count();
    if theirs.is_empty() {
        return None;
    }
    let found = format!("KAI or Run:ai set limits on {}", counted(theirs.len(), "node"));
    if both == 0 {
        return Some(good("NvFractions", found));
    }
    let found = format!("{found}, cantle on the same GPUs of {both} of them ({})", theirs.join(", "));
    let hint = "one of the two per node: keep cantle away (node.nodeSelector), or their daemon";
    Some(not(Severity::Bad, "NvFractions", found, hint))
}

fn parts(parts: &[Part]) -> Vec<Checkup> {
    if parts.is_empty() {
        let hint = "helm install cantle charts/cantle --namespace cantle-system --create-namespace";
        return vec![not(Severity::Bad, "parts", "cantle is not installed", hint)];
    }
    let judged = |part: &Part| {
        let found = format!("{}: {} of {} ready", part.name, part.ready, part.wanted);
        if part.ready >= part.wanted {
            return good("parts", found);
        }
        let (namespace, _) = part.name.split_once('/').unwrap_or_default();
        not(Severity::Bad, "parts", found, &format!("kubectl --namespace {namespace} describe pods says why"))
    };
    parts.iter().map(judged).collect()
}

fn devices(survey: &Survey) -> Checkup {
    let published = survey.nodes.iter().filter(|node| node.is_published).count();
    if published == 0 {
        let hint = "the node driver's log says why: kubectl --namespace cantle-system logs --selector \
                    app.kubernetes.io/component=node";
        return not(Severity::Bad, "devices", "no node offers GPUs", hint);
    }
    if !survey.has_classes && !survey.is_classic {
        let found = "no device class of cantle's";
        return not(Severity::Bad, "devices", found, "install the chart with deviceClasses.enabled=true");
    }
    good("devices", format!("GPUs of {} published", counted(published, "node")))
}

fn injector(survey: &Survey) -> Checkup {
    let Some(name) = &survey.injector else {
        let hint =
            "install the chart with webhook.enabled=true; pods with claims of their own work without it";
        return not(Severity::Warning, "injector", "none", hint);
    };
    match &survey.probe {
        Probe::Injected(slice) => good("injector", format!("{name}: half a GPU becomes {slice}")),
        Probe::Untouched => {
            let hint = "the kubeconfig's namespace is not the injector's: look at webhook.namespaceSelector and \
                        webhook.excludedNamespaces";
            not(
                Severity::Warning,
                "injector",
                format!("{name}: a pod of this namespace is not changed"),
                hint,
            )
        }
        Probe::Refused(why) => {
            let hint = if why.contains("failed calling webhook") {
                "the API server cannot reach it or does not trust its certificate: are its pods ready, is caBundle in the \
                 configuration, may the API server reach nodes at port 8443?"
            } else {
                "the API server says why"
            };
            not(Severity::Bad, "injector", format!("{name}: {why}"), hint)
        }
    }
}

fn tally(nodes: &[SurveyedNode], what: impl Fn(&SurveyedNode) -> String) -> BTreeMap<String, usize> {
    let mut all = BTreeMap::new();
    for node in nodes {
        *all.entry(what(node)).or_default() += 1;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(engine: &str, kubelet: &str) -> SurveyedNode {
        SurveyedNode {
            name: "n".to_owned(),
            kubelet: kubelet.to_owned(),
            engine: engine.to_owned(),
            is_published: true,
            is_fractioned: false,
            is_reserving: false,
            ..SurveyedNode::default()
        }
    }

    fn healthy() -> Survey {
        Survey {
            version: Version::MIXED,
            has_dra: true,
            gates: BTreeMap::new(),
            nodes: vec![node("containerd://2.1.4", "v1.36.2")],
            has_classes: true,
            is_classic: false,
            parts: vec![Part {
                name: "cantle-system/cantle-node".to_owned(),
                ready: 1,
                wanted: 1,
                is_scheduler: false,
            }],
            injector: Some("cantle-webhook".to_owned()),
            probe: Probe::Injected("cantle-fraction-5000".to_owned()),
            takes_mig: false,
            overlooked: BTreeMap::new(),
            held: Vec::new(),
            void_quotas: Vec::new(),
        }
    }

    fn amiss(survey: &Survey) -> Vec<(&'static str, Severity)> {
        let checkups = checkups(survey).into_iter().filter(|checkup| checkup.severity != Severity::Good);
        checkups.map(|checkup| (checkup.check, checkup.severity)).collect()
    }

    #[test]
    fn a_healthy_cluster_has_nothing_amiss() {
        assert_eq!(amiss(&healthy()), []);
    }

    #[test]
    fn what_is_amiss_is_named() {
        let with = |change: &dyn Fn(&mut Survey)| {
            let mut survey = healthy();
            change(&mut survey);
            amiss(&survey)
        };
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert_eq!(with(&|s| s.version = version("v1.28.1")), [("path", Severity::Bad)]);
        assert_eq!(with(&|s| s.version = version("v1.33.1")), [("path", Severity::Bad)]);
        let classic =
            |s: &mut Survey| (s.version, s.has_dra, s.is_classic) = (version("v1.33.1"), false, true);
        assert_eq!(with(&classic), []);
        assert_eq!(with(&|s| s.version = version("v1.34.1")), [("path", Severity::Bad)], "one GPU of a node");
        assert_eq!(with(&|s| s.version = version("v1.35.1")), [("path", Severity::Warning)]);
        assert_eq!(with(&|s| s.has_dra = false), [("path", Severity::Bad)]);
        let off = ("DRAConsumableCapacity".to_owned(), false);
        assert_eq!(with(&|s| s.gates.extend([off.clone()])), [("feature gate", Severity::Bad)]);
        assert_eq!(
            with(&|s| s.nodes.push(node("containerd://1.7.2", "v1.36.2"))),
            [("engine", Severity::Warning)]
        );
        assert_eq!(with(&|s| s.nodes.push(node("docker://27.0", "v1.36.2"))), [("engine", Severity::Bad)]);
        assert_eq!(
            with(&|s| s.nodes.push(node("cri-o://1.31.0", "v1.33.9"))),
            [("kubelet", Severity::Warning)]
        );
        let both = with(&|s| s.nodes[0].nvidia.extend([("nvidia.com/gpu".to_owned(), "8".to_owned())]));
        assert_eq!(both, [("NVIDIA's device plugin", Severity::Bad)]);
        let reserved = with(&|s| {
            s.nodes[0].nvidia.extend([("nvidia.com/gpu".to_owned(), "8".to_owned())]);
            s.nodes[0].is_reserving = true;
        });
        assert_eq!(reserved, []);
        let instances = |takes_mig| {
            with(&|s| {
                s.nodes[0].nvidia.extend([("nvidia.com/mig-1g.5gb".to_owned(), "7".to_owned())]);
                (s.nodes[0].is_published, s.takes_mig) = (false, takes_mig);
                s.nodes.push(node("containerd://2.1.4", "v1.36.2"));
            })
        };
        assert_eq!(instances(true), [("NVIDIA's device plugin", Severity::Warning)]);
        assert_eq!(instances(false), []);
        assert_eq!(with(&|s| s.nodes[0].is_fractioned = true), [("NvFractions", Severity::Bad)]);
        assert_eq!(with(&|s| s.parts[0].ready = 0), [("parts", Severity::Bad)]);
        assert_eq!(with(&|s| s.has_classes = false), [("devices", Severity::Bad)]);
        let label = ("label gpu-memory has no effect".to_owned(), vec!["a/b".to_owned(); 4]);
        assert_eq!(with(&|s| s.overlooked.extend([label.clone()])), [("pods", Severity::Warning)]);
        assert_eq!(with(&|s| s.held.push("a/p".to_owned())), [("held pods", Severity::Bad)]);
        assert_eq!(with(&|s| s.void_quotas.push("a/q".to_owned())), [("quotas", Severity::Warning)]);
        assert_eq!(with(&|s| s.injector = None), [("injector", Severity::Warning)]);
        assert_eq!(with(&|s| s.probe = Probe::Refused("no".to_owned())), [("injector", Severity::Bad)]);
    }
}
