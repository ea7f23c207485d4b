use std::collections::BTreeMap;

use super::*;

/// A machine on which a few paths are links and one file can be read.
struct Machine {
    links: BTreeMap<&'static str, &'static str>,
}

impl Host for Machine {
    fn resolve(&self, path: &Path) -> PathBuf {
        let target = path.to_str().and_then(|path| self.links.get(path));
        target.map_or_else(|| path.to_owned(), PathBuf::from)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        match path.to_str() {
            Some("/good.env") => Ok("# a comment\nA=1\n\nB=two words\n".to_owned()),
            Some("/bad.env") => Ok("A=1\nNVIDIA_VISIBLE_DEVICES=all\n".to_owned()),
            _ => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

fn try_words(words: &[&str]) -> Result<Admitted, AdmissionError> {
    let links = [
        ("/var/run/docker.sock", "/run/docker.sock"),
        ("/home/a/innocent", "/dev/nvidia1"),
        ("/home/a/mine", "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1"),
    ];
    let protected = Protected {
        sources: ["/usr/lib/x86_64-linux-gnu/libcuda.so.550.1", "/var/lib/cantle", "/run/cantle"]
            .map(Into::into)
            .into(),
        targets: ["/run/cantle", "/usr/lib/x86_64-linux-gnu/libcuda.so.1"].map(Into::into).into(),
    };
    let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
    admit(&words, &protected, &Machine { links: links.into() })
}

fn kept(words: &[&str]) -> Vec<(&'static str, String)> {
    let admitted = try_words(words).unwrap_or_else(|error| panic!("{words:?}: {error}"));
    admitted.options.into_iter().map(|given| (given.name, given.value)).collect()
}

#[test]
fn harmless_options_pass_in_every_spelling() {
    for words in [
        &["--env", "A=1"][..],
        &["--env=A=1"],
        &["-e", "A=1"],
        &["-eA=1"],
        &["-e=A=1"],
        &["--rm", "-it", "-e", "A=1"],
        &["-ite", "A=1"],
        &["--privileged=false", "--env", "A=1"],
    ] {
        assert_eq!(kept(words), [("env", "A=1".to_owned())], "{words:?}");
    }
    assert_eq!(kept(&["--net", "host"]), [("network", "host".to_owned())]);
    assert_eq!(kept(&["--env-file", "/good.env"]).len(), 2);
    for words in [
        &["--ipc=host"][..],
        &["--shm-size", "8g", "--ulimit", "memlock=-1"],
        &["-v", "/data:/data:ro", "-v", "models:/models", "-v", "/scratch"],
        &["-v", "/dev/shm:/dev/shm"],
        &["-v", "/run/mysocket:/run/mysocket"],
        &["-v", "/usr/share/fonts:/fonts:ro"],
        &["--mount", "type=bind,source=/data,target=/data,readonly"],
        &["--mount", "type=tmpfs,dst=/tmp"],
        &["--tmpfs", "/tmp:size=1g"],
        &["--device", "/dev/infiniband/uverbs0", "--device=/dev/fuse"],
        &["--cap-add", "IPC_LOCK", "--cap-add=NET_ADMIN", "--cap-drop", "ALL"],
        &["--security-opt", "seccomp=unconfined", "--user", "1000:1000", "-w", "/work"],
        &["--memory", "16g", "--cpus", "4", "--pids-limit", "1000", "--init"],
    ] {
        assert!(!kept(words).is_empty(), "{words:?}");
    }
}

#[test]
fn what_would_lift_the_limit_is_refused_by_name() {
    for words in [
        &["--gpus", "all"][..],
        &["--gpus=\"device=0\""],
        &["--privileged"],
        &["--privileged=true"],
        &["--pid=host"],
        &["--pid", "container:x"],
        &["--runtime=nvidia"],
        &["--device", "/dev/nvidia0"],
        &["--device=/dev/nvidiactl:/dev/x"],
        &["--device", "/dev"],
        &["--device", "/dev/mem"],
        &["--device", "nvidia.com/gpu=all"],
        &["--device", "/home/a/innocent"],
        &["--device-cgroup-rule", "c 195:* rmw"],
        &["-e", "NVIDIA_VISIBLE_DEVICES=all"],
        &["-e", "CUDA_VISIBLE_DEVICES=0"],
        &["--env=LD_PRELOAD=/tmp/x.so"],
        &["-eLD_LIBRARY_PATH=/opt/driver"],
        &["-e", "LD_AUDIT=/x.so"],
        &["-e", "CANTLE_SLICE_DIR=/tmp/fake"],
        &["-e", "GPU_MEMORY_LIMIT=99999999999"],
        &["-e", "PATH"],
        &["--env-file", "/bad.env"],
        &["--cap-add", "SYS_ADMIN"],
        &["--cap-add=cap_sys_ptrace"],
        &["--cap-add", "all"],
        &["--security-opt", "systempaths=unconfined"],
        &["--userns", "host"],
        &["--network=container:other"],
        &["--ipc", "container:other"],
        &["--cgroup-parent", "/"],
        &["--volumes-from", "other"],
        &["--volume-driver", "x"],
        &["-l", "cantle.dev/lease=other"],
    ] {
        let error = try_words(words).unwrap_err();
        assert!(matches!(error, AdmissionError::Refused { .. }), "{words:?}: {error}");
        assert!(error.to_string().starts_with("container option --"), "{error}");
    }
}

#[test]
fn mounts_keep_away_from_what_is_cantles() {
    for volume in [
        "/tmp/x:/run/cantle/slice/limits",
        "/tmp/x:/run/cantle",
        "/tmp/x:/var/run/cantle/slice",
        "/tmp/x:/run",
        "/tmp/x:/",
        "/tmp/x:/usr/lib",
        "/tmp/x:/usr/lib/x86_64-linux-gnu/libcuda.so.1",
        "/tmp/x:/lib/x86_64-linux-gnu/libcuda.so.1",
        "/tmp/x:/usr/./lib//x86_64-linux-gnu/libcuda.so.1",
        "/tmp/x:/usr/../run/cantle",
        "/tmp/x:relative",
        "/run/cantle",
        "/:/host",
        "/:/host:ro",
        "/usr/lib/x86_64-linux-gnu:/real:ro",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.550.1:/opt/real.so",
        "/home/a/mine:/opt/real.so",
        "/opt/copy/libcuda.so.1:/opt/real.so",
        "/var/lib:/x",
        "/var/lib/cantle/leases:/x",
        "/proc:/hostproc",
        "/sys/fs/cgroup:/cg",
        "/dev:/dev2",
        "/dev/nvidia0:/dev/nvidia0",
        "/var/run/docker.sock:/var/run/docker.sock",
        "/run/docker.sock:/x",
        "/a:/b:ro:extra",
    ] {
        let error = try_words(&["-v", volume]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("container option --volume={volume} is refused: ")), "{error}");
    }
    for mount in [
        "type=bind,src=/,dst=/host",
        "type=bind,source=/data,destination=/run/cantle/slice",
        "type=bind,target=/x",
        "type=bind,source=/data",
        "type=tmpfs,target=/run/cantle",
        "type=volume,target=/x,volume-opt=type=none,volume-opt=device=/",
        "type=devpts,target=/x",
        "type=bind,\"source=/data\",target=/x",
    ] {
        assert!(try_words(&["--mount", mount]).is_err(), "{mount}");
    }
    assert!(try_words(&["--tmpfs", "/run/cantle/slice"]).is_err());
}

#[test]
fn what_cantle_does_itself_is_left_out_with_a_note() {
    let admitted = try_words(&["--rm", "-d", "--restart", "always", "--entrypoint=/bin/sh", "-t"]).unwrap();
    assert_eq!(admitted.options, []);
    assert_eq!(admitted.notes.len(), 5);
    assert_eq!(admitted.notes[2], "--restart=always left out: cantle decides whether a task runs again");
}

#[test]
fn what_nobody_has_looked_at_is_refused() {
    let says = |words: &[&str]| try_words(words).unwrap_err().to_string();
    assert!(says(&["--brand-new"]).contains("--brand-new is not one that cantle knows"));
    assert!(says(&["-z"]).contains("-z is not one"));
    assert!(says(&["ubuntu"]).contains("\"ubuntu\" among the container's options is not an option"));
    assert!(says(&["--"]).contains("not an option"));
    assert_eq!(says(&["--env"]), "container option --env needs a value after it");
    assert_eq!(says(&["--init=maybe"]), "container option --init=maybe needs true or false");
}

const MACHINE: Machine = Machine { links: BTreeMap::new() };

#[test]
fn a_container_of_a_user_is_no_root() {
    let user = TaskUser::named("nobody").unwrap().unwrap();
    let admitted = |words: &[&str]| {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        of_user(admit(&words, &Protected::default(), &MACHINE).unwrap(), Some(&user))
    };
    let words = |admitted: Admitted| -> Vec<String> {
        admitted.options.iter().map(|given| format!("{}={}", given.name, given.value)).collect()
    };
    let own =
        [&format!("user={}:{}", user.uid(), user.gid()), "security-opt=no-new-privileges", "env=HOME=/tmp"];
    assert_eq!(words(admitted(&[]).unwrap()), own);
    let given = words(admitted(&["-e", "HOME=/data"]).unwrap());
    assert_eq!(given, ["env=HOME=/data", own[0], own[1]]);
    for word in ["--user=0", "--group-add=0", "--userns=private"] {
        let refused = admitted(&[word]).unwrap_err().to_string();
        assert!(refused.contains(word) && refused.contains("--task-user"), "{refused}");
    }
    let before = admit(&["-u=7".to_owned()], &Protected::default(), &MACHINE).unwrap();
    assert_eq!(of_user(before.clone(), None).unwrap(), before, "without a user of the agent's choice");
}
