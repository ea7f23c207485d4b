//! Encrypts what the database must not show: AES-256-GCM, with a key that is derived from the server's `token.key`.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use aws_lc_rs::error::Unspecified;
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Separates this key from others that could be derived from the same secret.
const SALT: &[u8] = b"cantle";
const INFO: &[u8] = b"secrets of users, 1";
/// The form of a sealed text: nonce, encrypted text and tag, in base64.
const FORM: &str = "1:";

/// Seals texts for the database. It never shows its key.
pub(crate) struct Sealer(RandomizedNonceKey);

impl std::fmt::Debug for Sealer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sealer").finish_non_exhaustive()
    }
}

impl Sealer {
    /// With a key that is derived from `secret`. All servers on one database have the same secret.
    pub(crate) fn new(secret: &[u8]) -> Result<Self, Unspecified> {
        Ok(Self(RandomizedNonceKey::new(&AES_256_GCM, &derived(secret, INFO)?)?))
    }

    /// `place` says what the text belongs to. It is opened with the same place only, so that a user who can write the
    /// database cannot exchange the texts of two users.
    pub(crate) fn seal(&self, place: &[&str], text: &str) -> Result<String, Unspecified> {
        let mut sealed = text.as_bytes().to_vec();
        let nonce = self.0.seal_in_place_append_tag(Aad::from(joined(place)), &mut sealed)?;
        let whole = [nonce.as_ref().as_slice(), &sealed].concat();
        Ok(format!("{FORM}{}", STANDARD.encode(whole)))
    }

    /// `None` for what this server did not seal, or with another `token.key`.
    pub(crate) fn open(&self, place: &[&str], sealed: &str) -> Option<String> {
        let mut whole = STANDARD.decode(sealed.strip_prefix(FORM)?).ok()?;
        let (nonce, text) = whole.split_at_mut_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let text = self.0.open_in_place(nonce, Aad::from(joined(place)), text).ok()?;
        String::from_utf8(text.to_vec()).ok()
    }
}

/// The key for one purpose (HKDF, RFC 5869).
pub(crate) fn derived(secret: &[u8], purpose: &[u8]) -> Result<[u8; 32], Unspecified> {
    let mut key = [0; 32];
    Salt::new(HKDF_SHA256, SALT).extract(secret).expand(&[purpose], HKDF_SHA256)?.fill(&mut key)?;
    Ok(key)
}

/// Each part with its length, so that no two places are the same bytes.
fn joined(place: &[&str]) -> Vec<u8> {
    place.iter().flat_map(|part| [&(part.len() as u64).to_be_bytes(), part.as_bytes()].concat()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: [&str; 2] = ["anna", "HF_TOKEN"];

    #[test]
    fn a_sealed_text_is_opened_in_its_place_with_its_key() {
        let sealer = Sealer::new(b"one").unwrap();
        let sealed = sealer.seal(&PLACE, "größer\n").unwrap();
        assert!(!sealed.contains("größer") && !STANDARD.decode(&sealed[2..]).unwrap().ends_with(b"\n"));
        assert_eq!(sealer.open(&PLACE, &sealed).as_deref(), Some("größer\n"));
        assert_eq!(
            Sealer::new(b"one").unwrap().open(&PLACE, &sealed).as_deref(),
            Some("größer\n"),
            "a restart"
        );
        assert_eq!(Sealer::new(b"two").unwrap().open(&PLACE, &sealed), None, "another key");
        for place in [["ben", "HF_TOKEN"], ["anna", "OTHER"], ["annaH", "F_TOKEN"]] {
            assert_eq!(sealer.open(&place, &sealed), None, "{place:?}");
        }
        assert_ne!(sealer.seal(&PLACE, "größer\n").unwrap(), sealed, "a nonce of its own");
    }

    #[test]
    fn a_damaged_text_is_not_opened() {
        let sealer = Sealer::new(b"one").unwrap();
        let sealed = sealer.seal(&PLACE, "value").unwrap();
        let mut bytes = STANDARD.decode(&sealed[2..]).unwrap();
        for at in 0..bytes.len() {
            bytes[at] ^= 1;
            assert_eq!(sealer.open(&PLACE, &format!("{FORM}{}", STANDARD.encode(&bytes))), None, "{at}");
            bytes[at] ^= 1;
        }
        for text in ["", "1:", "1:AAAA", "2:AAAA", "value"] {
            assert_eq!(sealer.open(&PLACE, text), None, "{text}");
        }
    }
}
