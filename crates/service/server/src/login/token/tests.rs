use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{EncodingKey, encode};
use proptest::prelude::*;
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde_json::json;

use super::*;
use crate::hostile::{Dice, share};

const NOW: i64 = 1_800_000_000;

/// A provider with one key on the curve P-256.
struct Provider {
    signing: EncodingKey,
    keys: JwkSet,
    point: Vec<u8>,
}

impl Provider {
    fn new() -> Self {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        // An uncompressed point: 4, x, y.
        let point = pair.public_key_raw().to_vec();
        let part = |range: std::ops::Range<usize>| URL_SAFE_NO_PAD.encode(&point[range]);
        let key = json!({"kty": "EC", "crv": "P-256", "kid": "k1", "use": "sig", "alg": "ES256", "x": part(1..33), "y": part(33..65)});
        let keys = serde_json::from_value(json!({"keys": [key]})).unwrap();
        Self { signing: EncodingKey::from_ec_der(pair.serialized_der()), keys, point }
    }

    fn token(&self, change: Value) -> String {
        let mut claims = json!({
            "iss": "https://login.example", "sub": "anna", "aud": "cantle", "exp": NOW + 300, "iat": NOW, "nonce": "n1",
            "groups": ["research"],
        });
        for (name, value) in change.as_object().unwrap() {
            claims[name] = value.clone();
        }
        self.sign(&Header { kid: Some("k1".into()), ..Header::new(Algorithm::ES256) }, &claims)
    }

    fn sign(&self, header: &Header, claims: &Value) -> String {
        encode(header, claims, &self.signing).unwrap()
    }

    fn check(&self, token: &str) -> Result<IdClaims, TokenError> {
        let issuer = "https://login.example";
        let expected = Expected { issuer, client_id: "cantle", nonce: Some("n1"), now_s: NOW };
        verify(token, &self.keys, &expected)
    }

    fn refuses(&self, token: &str, why: &str) {
        let said = self.check(token).unwrap_err().to_string();
        assert!(said.contains(why), "{said}, not {why}");
    }
}

#[test]
fn a_good_token_says_who_it_is() {
    let provider = Provider::new();
    let claims = provider.check(&provider.token(json!({}))).unwrap();
    assert_eq!((claims.sub.as_str(), &claims.about["groups"]), ("anna", &json!(["research"])));
    for good in [
        json!({"aud": ["cantle"]}),
        json!({"aud": ["cantle", "x"], "azp": "cantle"}),
        json!({"exp": NOW - 59}),
        json!({"iat": NOW + 59}),
    ] {
        assert!(provider.check(&provider.token(good.clone())).is_ok(), "{good}");
    }
}

#[test]
fn what_a_token_must_not_say() {
    let provider = Provider::new();
    for (change, why) in [
        (json!({"iss": "https://evil.example"}), "not from https://login.example"),
        (json!({"iss": "https://login.example/"}), "not from"),
        (json!({"iss": ["https://login.example"]}), "content is wrong"),
        (json!({"aud": "other"}), "not for the client"),
        (json!({"aud": ["cantle", "x"]}), "not for the client"),
        (json!({"azp": "x"}), "not for the client"),
        (json!({"aud": []}), "not for the client"),
        (json!({"exp": NOW - 60}), "expired 60 s ago; compare the clocks"),
        (json!({"exp": null}), "content is wrong"),
        (json!({"iat": NOW + 61}), "clock"),
        (json!({"nbf": NOW + 3600}), "clock"),
        (json!({"nonce": "of an earlier login"}), "another login"),
        (json!({"nonce": null}), "another login"),
        (json!({"sub": ""}), "nobody"),
    ] {
        provider.refuses(&provider.token(change), why);
    }
    provider.refuses(&"x".repeat(LONGEST + 1), "too long");
}

#[test]
fn the_key_decides_about_the_algorithm() {
    let provider = Provider::new();
    let claims = provider.token(json!({}));
    let body = claims.split('.').nth(1).unwrap();
    let with = |header: Value, signature: &str| {
        format!("{}.{body}.{signature}", URL_SAFE_NO_PAD.encode(header.to_string()))
    };
    let signature = claims.rsplit('.').next().unwrap();
    for header in
        [json!({"alg": "none"}), json!({"alg": "None", "kid": "k1"}), json!({"alg": "nOnE", "typ": "JWT"})]
    {
        provider.refuses(&with(header.clone(), ""), "unreadable");
        provider.refuses(&with(header, signature), "unreadable");
    }
    // The public key as the secret of an HMAC, in the forms in which people have it.
    let x = URL_SAFE_NO_PAD.encode(&provider.point[1..33]);
    for secret in [provider.point.clone(), provider.point[1..].to_vec(), x.into_bytes(), Vec::new()] {
        for algorithm in [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512] {
            let header = Header { kid: Some("k1".into()), ..Header::new(algorithm) };
            let claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(body).unwrap()).unwrap();
            let token = encode(&header, &claims, &EncodingKey::from_secret(&secret)).unwrap();
            provider.refuses(&token, "no signature with a public key");
        }
    }
    for algorithm in ["RS256", "PS256", "EdDSA", "ES384"] {
        assert_eq!(
            provider.check(&with(json!({"alg": algorithm, "kid": "k1"}), signature)),
            Err(TokenError::UnknownKey)
        );
    }
    // A key that only the token names belongs to no provider.
    let stranger = Provider::new();
    provider.refuses(&stranger.token(json!({})), "signature");
    let own =
        json!({"alg": "ES256", "kid": "k1", "jwk": serde_json::to_value(&stranger.keys.keys[0]).unwrap()});
    assert!(provider.check(&with(own, signature)).is_err());
    let unknown = Header { kid: Some("k2".into()), ..Header::new(Algorithm::ES256) };
    assert_eq!(provider.check(&stranger.sign(&unknown, &json!({}))), Err(TokenError::UnknownKey));
}

#[test]
fn symmetric_keys_and_keys_for_encryption_are_not_used() {
    let mut provider = Provider::new();
    let token = provider.token(json!({}));
    provider.keys.keys[0].common.public_key_use = Some(PublicKeyUse::Encryption);
    assert_eq!(provider.check(&token), Err(TokenError::UnknownKey));
    let shared = json!({"keys": [{"kty": "oct", "kid": "k1", "k": "c2VjcmV0"}]});
    provider.keys = serde_json::from_value(shared).unwrap();
    assert_eq!(provider.check(&token), Err(TokenError::UnknownKey));
    let header = Header { kid: Some("k1".into()), ..Header::new(Algorithm::HS256) };
    let token =
        encode(&header, &json!({"iss": "https://login.example"}), &EncodingKey::from_secret(b"secret"))
            .unwrap();
    assert!(provider.check(&token).is_err());
}

/// Answers that the provider itself signs, for others: another issuer, audience, time, nonce or type.
#[test]
fn no_answer_for_somebody_else_gets_in() {
    let (provider, mut dice) = (Provider::new(), Dice::of("answers of the provider"));
    let good = provider.check(&provider.token(json!({}))).unwrap();
    let count = share(20);
    for _ in 0..count {
        let name = dice.one_of(&["iss", "aud", "exp", "nonce", "azp", "iat", "nbf", "sub"]);
        let (past, far) = (NOW - 61 - i64::try_from(dice.below(1 << 30)).unwrap(), NOW + 10_000_000);
        let value = match dice.below(6) {
            0 => json!(dice.words()),
            1 => json!(dice.mutated(dice_word(name))),
            2 => json!(past),
            3 => json!(null),
            4 => json!([dice_word(name), dice.words()]),
            _ => json!(far),
        };
        let token = provider.token(json!({ name: value }));
        let Ok(claims) = provider.check(&token) else { continue };
        // An accepted token is for this server, and valid now: these are absent, or the same.
        let is_harmless = match name {
            "sub" => claims.sub == value.as_str().unwrap_or_default(),
            "iat" | "nbf" => value.as_i64().is_none_or(|from| from <= NOW + 60),
            "exp" => value == json!(far),
            "iss" => value == json!("https://login.example"),
            "nonce" => value == json!("n1"),
            "azp" => value == json!("cantle") || value.is_null(),
            _ => value == json!("cantle"),
        };
        assert!(is_harmless, "{name} = {value} got in, as {claims:?} next to {good:?}");
    }
    println!("{count} answers for somebody else: none got in");
}

fn dice_word(name: &str) -> &'static str {
    match name {
        "iss" => "https://login.example",
        "nonce" => "n1",
        _ => "cantle",
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, ..ProptestConfig::default() })]

    /// Bytes of a good token, changed, cut, doubled or put elsewhere: none is accepted that differs in meaning from the
    /// valid one.
    #[test]
    fn no_mutated_token_gets_in(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..5u8), 1..6)) {
        use std::sync::LazyLock;
        static GOOD: LazyLock<(Provider, String, IdClaims)> = LazyLock::new(|| {
            let provider = Provider::new();
            let token = provider.token(json!({}));
            let claims = provider.check(&token).unwrap();
            (provider, token, claims)
        });
        let (provider, token, good) = &*GOOD;
        let mut bytes = token.clone().into_bytes();
        for (at, byte, kind) in edits {
            if bytes.is_empty() { break; }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => drop(bytes.remove(at)),
                2 => bytes.insert(at, byte),
                3 => bytes.truncate(at),
                _ => { let copy = bytes[at..].to_vec(); bytes.extend(copy); }
            }
        }
        let mutated = String::from_utf8_lossy(&bytes).into_owned();
        if mutated != *token {
            // The last bits of base64 may be written in several ways; such a token is the same one.
            if let Ok(claims) = provider.check(&mutated) { prop_assert_eq!(&claims, good); }
        }
    }
}
