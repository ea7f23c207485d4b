//! The webhook's own certificate authority. Pure: time is an argument, randomness only in keys.
//!
//! Replicas share the authorities through a Secret; each signs its own short-lived certificate. A new authority is made
//! long before the old one ends, and signs only after the API servers have had time to learn it.

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use serde::{Deserialize, Serialize};

/// Clocks may differ by this much.
pub(super) const SKEW_S: i64 = 300;

/// Lifetimes, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CertificateLifetimes {
    /// An authority; renewed when a third is left.
    pub authority_s: i64,
    /// A certificate; renewed when half is left.
    pub leaf_s: i64,
    /// Between publishing an authority and signing with it.
    pub settle_s: i64,
}

impl CertificateLifetimes {
    /// Must every certificate end before its authority does?
    #[must_use]
    pub const fn fit(&self) -> bool {
        self.leaf_s > 0 && self.settle_s >= 0 && self.leaf_s + self.settle_s <= self.authority_s / 3
    }
}

/// One authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Authority {
    created_s: i64,
    expires_s: i64,
    cert_pem: String,
    key_pem: String,
}

/// A certificate that a server can show.
#[derive(Debug, Clone)]
pub(super) struct Leaf {
    /// Certificate in PEM.
    pub(super) cert_pem: String,
    /// Its key in PEM.
    pub(super) key_pem: String,
    /// When to make the next, in seconds since 1970.
    pub(super) renew_at_s: i64,
    signed_by: Authority,
}

impl Leaf {
    /// Should there be another one by now?
    #[must_use]
    pub(super) fn is_due(
        &self,
        authorities: &Authorities,
        now_s: i64,
        lifetimes: &CertificateLifetimes,
    ) -> bool {
        now_s >= self.renew_at_s
            || authorities.signer(now_s, lifetimes).is_none_or(|signer| *signer != self.signed_by)
    }
}

/// All authorities that API servers should trust, the oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Authorities(Vec<Authority>);

impl Authorities {
    /// The authorities that should exist instead, if they differ: ended ones out, a new one before the last one gets
    /// old.
    ///
    /// # Errors
    /// If no key can be made.
    pub(super) fn renewed(
        &self,
        now_s: i64,
        lifetimes: &CertificateLifetimes,
    ) -> Result<Option<Self>, rcgen::Error> {
        let mut next: Vec<Authority> = self.0.iter().filter(|a| a.expires_s > now_s).cloned().collect();
        let is_old = |a: &Authority| a.expires_s - now_s < lifetimes.authority_s / 3;
        if next.last().is_none_or(is_old) {
            next.push(Authority::new(now_s, lifetimes)?);
        }
        let next = Self(next);
        Ok((next != *self).then_some(next))
    }

    /// Their certificates in PEM.
    #[must_use]
    pub(super) fn bundle(&self) -> String {
        self.0.iter().map(|a| a.cert_pem.as_str()).collect()
    }

    /// The current signer: the newest that is known everywhere.
    #[must_use]
    pub(super) fn signer(&self, now_s: i64, lifetimes: &CertificateLifetimes) -> Option<&Authority> {
        let settled = self.0.iter().rev().find(|a| a.created_s + lifetimes.settle_s <= now_s);
        settled.or_else(|| self.0.first())
    }

    /// A certificate for a server of these names.
    ///
    /// # Errors
    /// If a name or a key makes no sense.
    pub(super) fn leaf(
        &self,
        names: &[String],
        now_s: i64,
        lifetimes: &CertificateLifetimes,
    ) -> Result<Option<Leaf>, rcgen::Error> {
        let Some(signer) = self.signer(now_s, lifetimes) else { return Ok(None) };
        let ends_s = (now_s + lifetimes.leaf_s).min(signer.expires_s);
        let mut params = params("cantle webhook", names, now_s, ends_s)?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let issuer = Issuer::new(
            authority_params(signer.created_s, signer.expires_s)?,
            KeyPair::from_pem(&signer.key_pem)?,
        );
        let cert_pem = params.signed_by(&key, &issuer)?.pem();
        let renew_at_s = now_s + (ends_s - now_s) / 2;
        Ok(Some(Leaf { cert_pem, key_pem: key.serialize_pem(), renew_at_s, signed_by: signer.clone() }))
    }
}

impl Authority {
    fn new(now_s: i64, lifetimes: &CertificateLifetimes) -> Result<Self, rcgen::Error> {
        let expires_s = now_s + lifetimes.authority_s;
        let key = KeyPair::generate()?;
        let cert_pem = authority_params(now_s, expires_s)?.self_signed(&key)?.pem();
        Ok(Self { created_s: now_s, expires_s, cert_pem, key_pem: key.serialize_pem() })
    }
}

/// Each has a name of its own, so that a chain leads to one of them only.
fn authority_params(created_s: i64, expires_s: i64) -> Result<CertificateParams, rcgen::Error> {
    let mut params = params(&format!("cantle webhook authority {created_s}"), &[], created_s, expires_s)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn params(
    common_name: &str,
    names: &[String],
    from_s: i64,
    to_s: i64,
) -> Result<CertificateParams, rcgen::Error> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name.push(DnType::CommonName, common_name);
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let at = |s: i64| epoch + std::time::Duration::from_secs(u64::try_from(s).unwrap_or(0));
    (params.not_before, params.not_after) = (at(from_s - SKEW_S), at(to_s));
    Ok(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIVES: CertificateLifetimes = CertificateLifetimes { authority_s: 900, leaf_s: 100, settle_s: 50 };

    #[test]
    fn at_every_moment_the_signer_is_known_and_outlives_what_it_signs() {
        assert!(LIVES.fit());
        let mut authorities = Authorities::default();
        let mut known: Vec<(i64, Authority)> = Vec::new();
        let mut changes = 0;
        for now in (1_000_000..1_004_000).step_by(10) {
            if let Some(next) = authorities.renewed(now, &LIVES).unwrap() {
                authorities = next;
                changes += 1;
            }
            for authority in &authorities.0 {
                if !known.iter().any(|(_, a)| a == authority) {
                    known.push((now, authority.clone()));
                }
            }
            let signer = authorities.signer(now, &LIVES).unwrap();
            let since = known.iter().find(|(_, a)| a == signer).unwrap().0;
            assert!(since == 1_000_000 || now - since >= LIVES.settle_s, "signs before it is known");
            assert!(signer.expires_s >= now + LIVES.leaf_s, "ends before what it signs");
            assert!(authorities.0.len() <= 2);
        }
        assert!(changes > 4, "several were made and went: {changes}");
    }

    #[test]
    fn nothing_to_do_most_of_the_time() {
        let first = Authorities::default().renewed(1_000, &LIVES).unwrap().unwrap();
        assert_eq!(first.renewed(1_100, &LIVES).unwrap(), None);
        let text = serde_json::to_string(&first).unwrap();
        assert_eq!(serde_json::from_str::<Authorities>(&text).unwrap(), first);
    }

    #[test]
    fn a_certificate_is_due_at_half_its_life_or_with_a_new_signer() {
        let now = 1_000_000;
        let first = Authorities::default().renewed(now, &LIVES).unwrap().unwrap();
        let leaf =
            first.leaf(&["localhost".to_owned(), "127.0.0.1".to_owned()], now, &LIVES).unwrap().unwrap();
        assert!(!leaf.is_due(&first, now + 49, &LIVES) && leaf.is_due(&first, now + 50, &LIVES));
        let later = now + 650;
        let second = first.renewed(later, &LIVES).unwrap().unwrap();
        let leaf = second.leaf(&["localhost".to_owned()], later, &LIVES).unwrap().unwrap();
        assert_eq!(leaf.signed_by, first.0[0], "the new one is not known everywhere yet");
        assert!(leaf.is_due(&second, later + LIVES.settle_s, &LIVES));
        assert_eq!(second.bundle().matches("BEGIN CERTIFICATE").count(), 2);
    }

    #[test]
    fn lives_that_do_not_fit() {
        assert!(!CertificateLifetimes { leaf_s: 280, ..LIVES }.fit());
        assert!(!CertificateLifetimes { leaf_s: 0, ..LIVES }.fit());
    }
}
