//! Errors as the user sees them: the line, its causes with `-v`, the hints, the exit code. Needs neither a GPU nor a server.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;
use std::process::{Command, Output};

/// A command line, its exit code, and all of its stderr without and with `-v`. `{dir}` is a new directory.
struct Case {
    words: &'static [&'static str],
    code: i32,
    plain: &'static str,
    verbose: &'static str,
}

const CASES: [Case; 8] = [
    Case {
        words: &["tasks"],
        code: 2,
        plain: "cantle: no server: none ran with the state directory {dir}/state\n\
                hint: start cantle up, or give --server URL\n",
        verbose: "cantle: no server: none ran with the state directory {dir}/state\n\
                  hint: start cantle up, or give --server URL\n",
    },
    Case {
        words: &["tasks", "--server", "http://127.0.0.1:9"],
        code: 1,
        plain: "cantle: cannot reach the server at http://127.0.0.1:9: Connection refused (os error 111)\n\
                hint: is it running, and is the address right?\n",
        verbose: "cantle: cannot reach the server at http://127.0.0.1:9: Connection refused (os error 111)\n\
                  caused by: error sending request for url (http://127.0.0.1:9/auth.login)\n\
                  caused by: client error (Connect)\n\
                  caused by: tcp connect error\n\
                  caused by: Connection refused (os error 111)\n\
                  hint: is it running, and is the address right?\n",
    },
    Case {
        words: &["simulate", "{dir}/nosuch.txt"],
        code: 3,
        plain: "cantle: {dir}/nosuch.txt: No such file or directory (os error 2)\n",
        verbose: "cantle: {dir}/nosuch.txt: No such file or directory (os error 2)\n\
                  caused by: No such file or directory (os error 2)\n",
    },
    Case {
        words: &["run", "--gpu", "0.5", "--compute", "fair", "--compute-limit", "0.2", "--", "true"],
        code: 2,
        plain: "cantle: the compute limit 0.2 is below the compute request 0.5; a limit is at least the request\n",
        verbose: "cantle: the compute limit 0.2 is below the compute request 0.5; a limit is at least the request\n",
    },
    Case {
        words: &["explain", "alocation"],
        code: 3,
        plain: "cantle: there is no page \"alocation\"\nhint: did you mean allocation-refused?\n",
        verbose: "cantle: there is no page \"alocation\"\nhint: did you mean allocation-refused?\n",
    },
    Case {
        words: &["check", "kubernetes"],
        code: 2,
        plain: "cantle: no cluster: no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod\n\
                hint: give --kubeconfig FILE, or set KUBECONFIG\n",
        verbose: "cantle: no cluster: no kubeconfig in $KUBECONFIG or ~/.kube/config, and this is not a pod\n\
                  hint: give --kubeconfig FILE, or set KUBECONFIG\n",
    },
    Case {
        words: &["check", "kubernetes", "--kubeconfig", "{dir}/nosuch"],
        code: 2,
        plain: "cantle: no cluster: {dir}/nosuch: No such file or directory (os error 2)\n\
                hint: give --kubeconfig FILE, or set KUBECONFIG\n",
        verbose: "cantle: no cluster: {dir}/nosuch: No such file or directory (os error 2)\n\
                  hint: give --kubeconfig FILE, or set KUBECONFIG\n",
    },
    Case {
        words: &["tsaks"],
        code: 2,
        plain: "cantle: unrecognized subcommand 'tsaks'\nhint: did you mean tasks?\n",
        verbose: "cantle: unrecognized subcommand 'tsaks'\nhint: did you mean tasks?\n",
    },
];

fn run(dir: &Path, words: &[&str]) -> Output {
    let dir_text = dir.display().to_string();
    let words = words.iter().map(|word| word.replace("{dir}", &dir_text));
    Command::new(env!("CARGO_BIN_EXE_cantle"))
        .args(words)
        .env_clear()
        .env("HOME", dir)
        .env("CANTLE_STATE_DIR", dir.join("state"))
        .env("CLEARML_API_ACCESS_KEY", "key")
        .env("CLEARML_API_SECRET_KEY", "secret")
        .output()
        .unwrap()
}

#[test]
fn an_error_is_one_line_with_hints_and_with_its_causes_if_asked() {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("errors");
    for Case { words, code, plain, verbose } in CASES {
        for (flag, expected) in [(None, plain), (Some("-v"), verbose)] {
            let line: Vec<&str> = flag.iter().chain(words).copied().collect();
            let done = run(&dir, &line);
            let stderr = String::from_utf8(done.stderr).unwrap();
            assert_eq!(stderr, expected.replace("{dir}", &dir.display().to_string()), "{line:?}");
            assert_eq!((done.status.code(), done.stdout.is_empty()), (Some(code), true), "{line:?}");
        }
    }
}
