//! Checks an ID token: that the provider issued it, for this server and this login, and that it has not expired.
//!
//! Only signatures with public keys count. The key determines the algorithm, not the token. A token that names another
//! family than its key has, `none`, or a secret shared with the provider is refused before its signature is checked.

use jsonwebtoken::jwk::{AlgorithmParameters, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey, Header, Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Tolerance between clocks, in seconds.
const LEEWAY_S: i64 = 60;
/// No provider's token is longer; one that is costs nothing.
const LONGEST: usize = 64 << 10;

/// The required claims of a token.
pub(super) struct Expected<'a> {
    /// The issuer, letter by letter.
    pub(super) issuer: &'a str,
    /// This server at the provider.
    pub(super) client_id: &'a str,
    /// The nonce of this login; `None` where no browser was sent to the provider.
    pub(super) nonce: Option<&'a str>,
    /// Seconds since 1970.
    pub(super) now_s: i64,
}

/// The claims of a verified token about a user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct IdClaims {
    pub(super) iss: String,
    pub(super) sub: String,
    aud: Audience,
    exp: i64,
    iat: i64,
    nbf: Option<i64>,
    nonce: Option<String>,
    azp: Option<String>,
    /// Name, address, groups.
    #[serde(flatten)]
    pub(super) about: Map<String, Value>,
}

/// One client, or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum Audience {
    One(String),
    Many(Vec<String>),
}

/// Why a token is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum TokenError {
    /// Another one may be among keys that are fetched now.
    #[error("its key is not among the provider's")]
    UnknownKey,
    /// For good.
    #[error("{0}")]
    Refused(String),
}

fn refused<T>(why: impl Into<String>) -> Result<T, TokenError> {
    Err(TokenError::Refused(why.into()))
}

/// The claims of a good token.
pub(super) fn verify(token: &str, keys: &JwkSet, expected: &Expected<'_>) -> Result<IdClaims, TokenError> {
    if token.len() > LONGEST {
        return refused("it is too long");
    }
    let unreadable =
        |error: jsonwebtoken::errors::Error| TokenError::Refused(format!("it is unreadable ({error})"));
    let header = decode_header(token).map_err(unreadable)?;
    let key = key_of(&header, keys)?;
    let decoding = DecodingKey::from_jwk(key).map_err(unreadable)?;
    let mut validation = Validation::new(header.alg);
    // Checked below, letter by letter and with a clock that tests can set.
    validation.validate_aud = false;
    validation.validate_exp = false;
    validation.required_spec_claims.clear();
    let claims = match decode::<IdClaims>(token, &decoding, &validation) {
        Ok(token) => token.claims,
        Err(error) => return refused(format!("its signature or content is wrong ({error})")),
    };
    check(&claims, expected)?;
    Ok(claims)
}

/// The key that the token names and that may sign it.
fn key_of<'a>(header: &Header, keys: &'a JwkSet) -> Result<&'a Jwk, TokenError> {
    if !is_public(header.alg) {
        return refused(format!("{:?} is no signature with a public key", header.alg));
    }
    let fits = |key: &&Jwk| {
        key.common.public_key_use.as_ref().is_none_or(|usage| *usage == PublicKeyUse::Signature)
            && is_family(header.alg, &key.algorithm)
            && key.common.key_algorithm.is_none_or(|named| named.to_string() == format!("{:?}", header.alg))
    };
    let mut found =
        keys.keys.iter().filter(fits).filter(|key| header.kid.is_none() || key.common.key_id == header.kid);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => refused("it does not say which of several keys signed it"),
        (None, _) => Err(TokenError::UnknownKey),
    }
}

const fn is_public(algorithm: Algorithm) -> bool {
    !matches!(algorithm, Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512)
}

const fn is_family(algorithm: Algorithm, key: &AlgorithmParameters) -> bool {
    match algorithm {
        Algorithm::RS256
        | Algorithm::RS384
        | Algorithm::RS512
        | Algorithm::PS256
        | Algorithm::PS384
        | Algorithm::PS512 => matches!(key, AlgorithmParameters::RSA(_)),
        Algorithm::ES256 | Algorithm::ES384 => matches!(key, AlgorithmParameters::EllipticCurve(_)),
        Algorithm::EdDSA => matches!(key, AlgorithmParameters::OctetKeyPair(_)),
        _ => false,
    }
}

fn check(claims: &IdClaims, expected: &Expected<'_>) -> Result<(), TokenError> {
    if claims.iss != expected.issuer {
        return refused(format!("it is from {}, not from {}", claims.iss, expected.issuer));
    }
    let (is_for_us, is_for_others) = match &claims.aud {
        Audience::One(aud) => (aud == expected.client_id, false),
        Audience::Many(all) => (all.iter().any(|aud| aud == expected.client_id), all.len() > 1),
    };
    let party = claims.azp.as_deref();
    if !is_for_us
        || party.is_some_and(|party| party != expected.client_id)
        || (is_for_others && party.is_none())
    {
        return refused(format!("it is not for the client {}", expected.client_id));
    }
    if claims.sub.is_empty() {
        return refused("it names nobody");
    }
    if claims.exp.saturating_add(LEEWAY_S) <= expected.now_s {
        return refused(format!(
            "it expired {} s ago; compare the clocks",
            expected.now_s.saturating_sub(claims.exp)
        ));
    }
    let begins = claims.nbf.unwrap_or(claims.iat).max(claims.iat);
    if begins > expected.now_s.saturating_add(LEEWAY_S) {
        let ahead = begins.saturating_sub(expected.now_s);
        return refused(format!("it begins in {ahead} s; the provider's clock or this machine's is off"));
    }
    if expected.nonce.is_some() && claims.nonce.as_deref() != expected.nonce {
        return refused("it belongs to another login");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
