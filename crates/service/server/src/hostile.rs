//! Tests with forged proofs of identity: random words, and valid ones that were changed. None is accepted.
//!
//! `CANTLE_HOSTILE=1000000 CANTLE_HOSTILE_SEED=7 cargo test -p cantle-server --lib hostile -- --nocapture` makes a million of them;
//! without the variables a few from the same seed each time. `login` has the tests with forged answers of the identity
//! provider.

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "the suite says how long a soak lasts, and it prints what it did"
)]

use axum::http::{HeaderMap, HeaderValue, header};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use cantle_store::Store;
use serde_json::json;

use crate::clock::now_us;
use crate::identity::{Keys, load_or_make};
use crate::rights::{OwnRun, People, bootstrap};
use crate::ui::cookie_of;

/// Numbers that are the same for the same seed (SplitMix64).
pub(crate) struct Dice(u64);

impl Dice {
    /// Those of this run, different for each use.
    pub(crate) fn of(what: &str) -> Self {
        let seed = number("CANTLE_HOSTILE_SEED").unwrap_or(1);
        println!("{what}: seed {seed}");
        Self(what.bytes().fold(seed, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Below `end`, which is not 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.next() % end as u64).unwrap()
    }

    pub(crate) fn one_of<'a, T: ?Sized>(&mut self, list: &[&'a T]) -> &'a T {
        list[self.below(list.len())]
    }

    fn byte(&mut self) -> u8 {
        self.next().to_le_bytes()[0]
    }

    /// Some bytes, as text.
    pub(crate) fn words(&mut self) -> String {
        let bytes: Vec<u8> = (0..self.below(200)).map(|_| self.byte()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The same text with bytes changed, removed, added, the rest cut off, or a piece doubled.
    pub(crate) fn mutated(&mut self, text: &str) -> String {
        let mut bytes = text.as_bytes().to_vec();
        for _ in 0..=self.below(5) {
            if bytes.is_empty() {
                break;
            }
            let at = self.below(bytes.len());
            match self.below(5) {
                0 => bytes[at] = self.byte(),
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, self.byte()),
                3 => bytes.truncate(at),
                _ => bytes.extend(bytes[at..].to_vec()),
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// This percentage of all.
pub(crate) fn share(percent: u64) -> u64 {
    number("CANTLE_HOSTILE").unwrap_or(20_000) * percent / 100
}

struct Door {
    keys: Keys,
    people: People,
    /// Proofs that are good: as the `Authorization` header has them.
    good: Vec<String>,
    _dir: tempfile::TempDir,
}

async fn door() -> Door {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("server")).unwrap();
    let identity = load_or_make(dir.path(), "http://127.0.0.1:1", false).unwrap();
    let store = Store::open(&dir.path().join("server/cantle.db")).await.unwrap();
    let people = bootstrap(&store, &identity, now_us()).await.unwrap();
    let pair = &identity.admin.file;
    let admin = people.by_key(&pair.access_key, &pair.secret_key).unwrap();
    let run = OwnRun { task: "0123456789abcdef0123456789abcdef".into(), lease: "l".into() };
    let good = vec![
        format!("Bearer {}", identity.keys.token(&admin, now_us(), None).unwrap()),
        format!("Bearer {}", identity.keys.token_of_run(&admin.user, &run, now_us()).unwrap()),
        format!("Basic {}", STANDARD.encode(format!("{}:{}", pair.access_key, pair.secret_key))),
    ];
    Door { keys: identity.keys, people, good, _dir: dir }
}

impl Door {
    /// The user, task and lease that it lets in.
    fn lets_in(&self, authorization: &str) -> Option<(String, Option<OwnRun>)> {
        self.keys.check(&self.people, Some(authorization)).ok().map(|who| (who.user, who.run))
    }

    /// The contents of its two halves, in any spelling: the last bits of base64 may be written in several ways, and space
    /// around it has no meaning.
    fn says(authorization: &str) -> Option<(String, Vec<Vec<u8>>)> {
        let (scheme, proof) = authorization.split_once(' ')?;
        let lenient = base64::engine::GeneralPurpose::new(
            if scheme.eq_ignore_ascii_case("basic") {
                &base64::alphabet::STANDARD
            } else {
                &base64::alphabet::URL_SAFE
            },
            base64::engine::GeneralPurposeConfig::new()
                .with_decode_allow_trailing_bits(true)
                .with_decode_padding_mode(base64::engine::DecodePaddingMode::Indifferent),
        );
        let parts = proof.trim().split('.').map(|part| lenient.decode(part).ok()).collect::<Option<_>>()?;
        Some((scheme.to_ascii_lowercase(), parts))
    }

    /// A changed proof is accepted only if it has the same meaning as the valid one.
    fn refuses(&self, hostile: &str, good: &str) {
        if let Some(who) = self.lets_in(hostile) {
            assert_eq!(Some(who), self.lets_in(good), "{hostile:?}");
            assert_eq!(
                Self::says(hostile),
                Self::says(good),
                "{hostile:?} says something else than {good:?}"
            );
        }
    }
}

#[tokio::test]
async fn no_changed_token_or_pair_gets_in() {
    let (door, mut dice) = (door().await, Dice::of("tokens and pairs"));
    assert!(door.good.iter().all(|good| door.lets_in(good).is_some()), "the negative control");
    let count = share(40);
    for n in 0..count {
        let good = &door.good[usize::try_from(n).unwrap() % door.good.len()];
        let hostile = dice.mutated(good);
        door.refuses(&hostile, good);
    }
    println!("{count} changed tokens and key pairs: none got in");
}

/// Another header or other claims before a signature that was good for those before, or made with another secret.
#[tokio::test]
async fn no_forged_token_gets_in() {
    let (door, mut dice) = (door().await, Dice::of("forged tokens"));
    let count = share(15);
    for n in 0..count {
        let good = &door.good[usize::try_from(n % 2).unwrap()];
        let [head, claims, signature] =
            good["Bearer ".len()..].split('.').collect::<Vec<_>>().try_into().unwrap();
        let mut said: serde_json::Value =
            serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
        let value = match dice.below(4) {
            0 => json!(dice.words()),
            1 => json!("cantle-user"),
            2 => json!(null),
            _ => json!(dice.below(1 << 40)),
        };
        match dice.below(3) {
            0 => said["identity"][dice.one_of(&["user", "key", "task", "lease", "role"])] = value,
            1 => said[dice.one_of(&["exp", "iat", "identity", "session_id"])] = value,
            _ => {}
        }
        let said = URL_SAFE_NO_PAD.encode(said.to_string());
        let algorithm = dice.one_of(&["none", "None", "HS256", "HS384", "HS512", "ES256", "RS256", ""]);
        let other_head = URL_SAFE_NO_PAD.encode(json!({ "alg": algorithm, "typ": "JWT" }).to_string());
        let other_signature = URL_SAFE_NO_PAD.encode(dice.words());
        let hostile = format!(
            "Bearer {}.{said}.{}",
            dice.one_of(&[head, other_head.as_str()]),
            dice.one_of(&[signature, other_signature.as_str(), ""])
        );
        door.refuses(&hostile, good);
    }
    println!("{count} forged tokens: none got in");
}

#[tokio::test]
async fn no_cookie_and_no_word_at_random_gets_in() {
    let (door, mut dice) = (door().await, Dice::of("cookies and words"));
    let token = &door.good[0]["Bearer ".len()..];
    let count = share(15);
    for n in 0..count {
        let words =
            if n % 2 == 0 { dice.mutated(&format!("cantle_session={token}; a=b")) } else { dice.words() };
        let mut headers = HeaderMap::new();
        if let Ok(value) = HeaderValue::from_bytes(words.as_bytes()) {
            headers.append(header::COOKIE, value);
        }
        let cookie = cookie_of(&headers, "cantle_session").unwrap_or_default();
        door.refuses(&format!("Bearer {cookie}"), &door.good[0]);
        for scheme in ["Basic ", "Bearer ", ""] {
            let authorization = format!("{scheme}{words}");
            assert!(door.lets_in(&authorization).is_none(), "{authorization:?}");
        }
    }
    println!("{count} cookies and words at random: none got in");
}
