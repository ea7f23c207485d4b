//! Translates admitted options to the engine's API.

use bollard::models::{
    ContainerCreateBody, DeviceMapping, HostConfig, HostConfigCgroupnsModeEnum, Mount, MountType,
    PortBinding, ResourcesUlimits,
};

use super::AdmissionError;
use super::flags::Given;

/// The requests to the engine, except for the container itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Extra {
    pub(super) platform: String,
    pub(super) pull: Pull,
}

/// When an image is fetched from its registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Pull {
    Always,
    #[default]
    Missing,
    Never,
}

/// Puts the options into `body`.
pub(super) fn apply(
    options: &[Given],
    body: &mut ContainerCreateBody,
    extra: &mut Extra,
) -> Result<(), AdmissionError> {
    for given in options {
        let wrong = |needs| AdmissionError::Value(format!("--{}={}", given.name, given.value), needs);
        let host = body.host_config.get_or_insert_default();
        let known = apply_lists(given, host)
            || apply_numbers(given, host).map_err(wrong)?
            || apply_structured(given, host).map_err(wrong)?;
        if !known {
            apply_container(given, body, extra).map_err(wrong)?;
        }
    }
    Ok(())
}

fn push(list: &mut Option<Vec<String>>, value: &str) {
    list.get_or_insert_default().push(value.to_owned());
}

/// Options whose text the engine takes as it is. False if it is none of them.
fn apply_lists(given: &Given, host: &mut HostConfig) -> bool {
    let value = given.value.as_str();
    match given.name {
        "add-host" => push(&mut host.extra_hosts, value),
        "cap-add" => push(&mut host.cap_add, value),
        "cap-drop" => push(&mut host.cap_drop, value),
        "dns" => push(&mut host.dns, value),
        "dns-search" => push(&mut host.dns_search, value),
        "group-add" => push(&mut host.group_add, value),
        "security-opt" => push(&mut host.security_opt, value),
        "volume" => push(&mut host.binds, value),
        "ipc" => host.ipc_mode = Some(value.to_owned()),
        "network" => host.network_mode = Some(value.to_owned()),
        "uts" => host.uts_mode = Some(value.to_owned()),
        "userns" => host.userns_mode = Some(value.to_owned()),
        "cpuset-cpus" => host.cpuset_cpus = Some(value.to_owned()),
        "init" => host.init = Some(true),
        "read-only" => host.readonly_rootfs = Some(true),
        _ => return false,
    }
    true
}

type Needs = &'static str;

fn apply_numbers(given: &Given, host: &mut HostConfig) -> Result<bool, Needs> {
    let value = given.value.as_str();
    let number = || value.parse::<i64>().map_err(|_| "a whole number");
    match given.name {
        "cpu-shares" => host.cpu_shares = Some(number()?),
        "oom-score-adj" => host.oom_score_adj = Some(number()?),
        "pids-limit" => host.pids_limit = Some(number()?),
        "memory" => host.memory = Some(size(value)?),
        "memory-swap" if value == "-1" => host.memory_swap = Some(-1),
        "memory-swap" => host.memory_swap = Some(size(value)?),
        "shm-size" => host.shm_size = Some(size(value)?),
        "cpus" => host.nano_cpus = Some(nano_cpus(value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

fn apply_structured(given: &Given, host: &mut HostConfig) -> Result<bool, Needs> {
    let value = given.value.as_str();
    match given.name {
        "cgroupns" => {
            host.cgroupns_mode = Some(match value {
                "host" => HostConfigCgroupnsModeEnum::HOST,
                "private" => HostConfigCgroupnsModeEnum::PRIVATE,
                _ => return Err("host or private"),
            });
        }
        "device" => host.devices.get_or_insert_default().push(device(value)),
        "mount" => host.mounts.get_or_insert_default().push(mount(value)?),
        "sysctl" => {
            let (name, setting) = value.split_once('=').ok_or("NAME=VALUE")?;
            host.sysctls.get_or_insert_default().insert(name.to_owned(), setting.to_owned());
        }
        "tmpfs" => {
            let (target, options) = value.split_once(':').unwrap_or((value, ""));
            host.tmpfs.get_or_insert_default().insert(target.to_owned(), options.to_owned());
        }
        "ulimit" => host.ulimits.get_or_insert_default().push(ulimit(value)?),
        "publish" => {
            let (port, binding) = publish(value)?;
            let bindings = host.port_bindings.get_or_insert_default().entry(port).or_default();
            bindings.get_or_insert_default().push(binding);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn apply_container(given: &Given, body: &mut ContainerCreateBody, extra: &mut Extra) -> Result<(), Needs> {
    let value = given.value.as_str();
    match given.name {
        "env" => push(&mut body.env, value),
        "hostname" => body.hostname = Some(value.to_owned()),
        "user" => body.user = Some(value.to_owned()),
        "workdir" => body.working_dir = Some(value.to_owned()),
        "stop-signal" => body.stop_signal = Some(value.to_owned()),
        "label" => {
            let (name, text) = value.split_once('=').unwrap_or((value, ""));
            body.labels.get_or_insert_default().insert(name.to_owned(), text.to_owned());
        }
        "platform" => value.clone_into(&mut extra.platform),
        "pull" => {
            extra.pull = match value {
                "always" => Pull::Always,
                "missing" => Pull::Missing,
                "never" => Pull::Never,
                _ => return Err("always, missing or never"),
            };
        }
        _ => return Err("support that cantle does not have"),
    }
    Ok(())
}

/// docker's sizes: `b`, `k`, `m`, `g` are powers of 1024; no unit is bytes.
fn size(text: &str) -> Result<i64, Needs> {
    const NEEDS: Needs = "a size such as 512m or 16g";
    let lower = text.to_ascii_lowercase();
    let number = lower.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &lower[number.len()..] {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return Err(NEEDS),
    };
    let number: i64 = number.parse().map_err(|_| NEEDS)?;
    number.checked_mul(1 << shift).filter(|bytes| *bytes >= 0).ok_or(NEEDS)
}

fn nano_cpus(text: &str) -> Result<i64, Needs> {
    const NEEDS: Needs = "a number of CPUs such as 1.5";
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    if rest.len() > 9 || !rest.bytes().all(|b| b.is_ascii_digit()) {
        return Err(NEEDS);
    }
    let nano: i64 = format!("{rest:0<9}").parse().map_err(|_| NEEDS)?;
    let whole: u32 = whole.parse().map_err(|_| NEEDS)?;
    Ok(i64::from(whole) * 1_000_000_000 + nano)
}

fn device(text: &str) -> DeviceMapping {
    let mut parts = text.splitn(3, ':');
    let on_host = parts.next().unwrap_or_default();
    DeviceMapping {
        path_on_host: Some(on_host.to_owned()),
        path_in_container: Some(parts.next().unwrap_or(on_host).to_owned()),
        cgroup_permissions: Some(parts.next().unwrap_or("rwm").to_owned()),
    }
}

fn mount(text: &str) -> Result<Mount, Needs> {
    let mut mount = Mount { typ: Some(MountType::VOLUME), ..Default::default() };
    for part in text.split(',') {
        let (name, value) = part.split_once('=').unwrap_or((part, "true"));
        match name {
            "type" => {
                mount.typ = Some(match value {
                    "bind" => MountType::BIND,
                    "tmpfs" => MountType::TMPFS,
                    _ => MountType::VOLUME,
                });
            }
            "source" | "src" => mount.source = Some(value.to_owned()),
            "target" | "dst" | "destination" => mount.target = Some(value.to_owned()),
            "readonly" | "ro" => mount.read_only = Some(value == "true" || value == "1"),
            _ => return Err("only type, source, target and readonly in it"),
        }
    }
    Ok(mount)
}

fn ulimit(text: &str) -> Result<ResourcesUlimits, Needs> {
    const NEEDS: Needs = "NAME=SOFT or NAME=SOFT:HARD";
    let (name, limits) = text.split_once('=').ok_or(NEEDS)?;
    let (soft, hard) = limits.split_once(':').unwrap_or((limits, limits));
    let number = |text: &str| text.parse::<i64>().map(Some).map_err(|_| NEEDS);
    Ok(ResourcesUlimits { name: Some(name.to_owned()), soft: number(soft)?, hard: number(hard)? })
}

/// `[IP:]HOST:CONTAINER[/PROTOCOL]`, or a container's port alone.
fn publish(text: &str) -> Result<(String, PortBinding), Needs> {
    const NEEDS: Needs = "[IP:]PORT:PORT[/udp]";
    let (address, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
    let parts: Vec<&str> = address.split(':').collect();
    let (ip, host, container) = match parts.as_slice() {
        [container] => (None, None, *container),
        [host, container] => (None, Some(*host), *container),
        [ip, host, container] => (Some((*ip).to_owned()), Some(*host), *container),
        _ => return Err(NEEDS),
    };
    for port in host.iter().chain([&container]).filter(|port| !port.is_empty()) {
        port.parse::<u16>().map_err(|_| NEEDS)?;
    }
    let binding = PortBinding { host_ip: ip, host_port: Some(host.unwrap_or_default().to_owned()) };
    Ok((format!("{container}/{protocol}"), binding))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(options: &[(&'static str, &str)]) -> Result<ContainerCreateBody, AdmissionError> {
        let options: Vec<Given> =
            options.iter().map(|&(name, value)| Given { name, value: value.to_owned() }).collect();
        let mut body = ContainerCreateBody::default();
        apply(&options, &mut body, &mut Extra::default()).map(|()| body)
    }

    #[test]
    fn options_reach_the_engine() {
        let body = body(&[
            ("env", "A=1"),
            ("env", "B=2"),
            ("memory", "16g"),
            ("shm-size", "512m"),
            ("cpus", "1.5"),
            ("ulimit", "memlock=-1"),
            ("publish", "127.0.0.1:8080:80"),
            ("mount", "type=bind,source=/data,target=/d,readonly"),
            ("device", "/dev/fuse"),
            ("label", "team=a"),
        ])
        .unwrap();
        let host = body.host_config.unwrap();
        assert_eq!(body.env.unwrap(), ["A=1", "B=2"]);
        assert_eq!(host.memory, Some(16 << 30));
        assert_eq!(host.shm_size, Some(512 << 20));
        assert_eq!(host.nano_cpus, Some(1_500_000_000));
        assert_eq!(host.ulimits.unwrap()[0].hard, Some(-1));
        let bindings = host.port_bindings.unwrap();
        let binding = &bindings["80/tcp"].as_ref().unwrap()[0];
        assert_eq!(
            (binding.host_ip.as_deref(), binding.host_port.as_deref()),
            (Some("127.0.0.1"), Some("8080"))
        );
        let mount = &host.mounts.unwrap()[0];
        assert_eq!((mount.typ, mount.read_only), (Some(MountType::BIND), Some(true)));
        assert_eq!(host.devices.unwrap()[0].path_in_container.as_deref(), Some("/dev/fuse"));
        assert_eq!(body.labels.unwrap()["team"], "a");
    }

    #[test]
    fn wrong_values_say_what_would_be_right() {
        let says = |name, value| body(&[(name, value)]).unwrap_err().to_string();
        assert_eq!(says("memory", "lots"), "container option --memory=lots needs a size such as 512m or 16g");
        assert_eq!(says("cpus", "x"), "container option --cpus=x needs a number of CPUs such as 1.5");
        assert_eq!(
            says("publish", "http:80"),
            "container option --publish=http:80 needs [IP:]PORT:PORT[/udp]"
        );
        assert_eq!(says("pull", "maybe"), "container option --pull=maybe needs always, missing or never");
        for (name, value) in
            [("memory", "-1g"), ("ulimit", "nofile"), ("mount", "type=bind,bind-propagation=shared")]
        {
            assert!(body(&[(name, value)]).is_err(), "{name}={value}");
        }
    }
}
