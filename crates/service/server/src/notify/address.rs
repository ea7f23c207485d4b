//! The addresses of receivers, and which of them a server may reach.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use lettre::Address as MailAddress;
use reqwest::Url;

/// Longer addresses are refused.
const LONGEST: usize = 2000;
/// The forms, for people.
const FORMS: &str = "https://…, slack:https://…, teams:https://… or mailto:ADDRESS";

/// Where a notice goes, and in which form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// JSON with a signature.
    Json(Url),
    /// Slack's incoming webhooks, and those of programs that understand them.
    Slack(Url),
    /// A workflow of Microsoft Teams.
    Teams(Url),
    /// Mail.
    Mail(MailAddress),
}

impl Address {
    /// Reads it as users write it.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("the address {why}; write {FORMS}");
        if text.len() > LONGEST {
            return Err(wrong("is longer than 2000 bytes"));
        }
        let mail = text.strip_prefix("mailto:").or_else(|| {
            let is_bare = text.contains('@') && !text.contains([':', '/']);
            is_bare.then_some(text)
        });
        if let Some(mail) = mail {
            return mail.parse().map(Self::Mail).map_err(|_| wrong("has no valid mail address"));
        }
        let (form, url): (fn(Url) -> Self, _) =
            match (text.strip_prefix("slack:"), text.strip_prefix("teams:")) {
                (Some(url), _) => (Self::Slack, url),
                (_, Some(url)) => (Self::Teams, url),
                _ => (Self::Json, text),
            };
        let url: Url = url.parse().map_err(|_| wrong("is no URL"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(wrong("is no URL of http or https"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(wrong("has a user or a password"));
        }
        Ok(form(url))
    }

    /// One word for the form.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Self::Json(_) => "json",
            Self::Slack(_) => "slack",
            Self::Teams(_) => "teams",
            Self::Mail(_) => "mail",
        }
    }

    /// The part of it that people may see: the path of a webhook is often its only secret.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Json(url) | Self::Slack(url) | Self::Teams(url) => {
                let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
                format!("{}://{}{port}/…", url.scheme(), url.host_str().unwrap_or_default())
            }
            Self::Mail(address) => address.to_string(),
        }
    }
}

/// The addresses that are not public and may be reached all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    hosts: BTreeSet<String>,
    nets: Vec<(IpAddr, u8)>,
}

impl Allowed {
    /// Of host names, addresses, and networks such as `10.1.0.0/16`.
    pub(crate) fn parse(entries: &[String]) -> Result<Self, String> {
        let mut allowed = Self::default();
        for entry in entries {
            let (ip, bits) =
                entry.split_once('/').map_or((entry.as_str(), None), |(ip, bits)| (ip, Some(bits)));
            match (ip.parse::<IpAddr>(), bits) {
                (Ok(ip), None) => allowed.nets.push((ip, if ip.is_ipv4() { 32 } else { 128 })),
                (Ok(ip), Some(bits)) => {
                    let most = if ip.is_ipv4() { 32 } else { 128 };
                    let bits = bits.parse().ok().filter(|bits| *bits <= most);
                    allowed.nets.push((ip, bits.ok_or_else(|| format!("{entry} is no network"))?));
                }
                (Err(_), None) if !entry.is_empty() => drop(allowed.hosts.insert(entry.to_ascii_lowercase())),
                (Err(_), _) => return Err(format!("\"{entry}\" is no host, address or network")),
            }
        }
        Ok(allowed)
    }

    /// Whether this address of this host may be reached.
    pub(crate) fn admits(&self, host: &str, ip: IpAddr) -> bool {
        let ip = plain(ip);
        is_public(ip)
            || self.hosts.contains(&host.to_ascii_lowercase())
            || self.nets.iter().any(|(net, bits)| contains(*net, *bits, ip))
    }
}

fn contains(net: IpAddr, bits: u8, ip: IpAddr) -> bool {
    let top = |bytes: u128, length: u8| bytes.checked_shr(u32::from(length - bits)).unwrap_or(0);
    match (net, ip) {
        (IpAddr::V4(net), IpAddr::V4(ip)) => top(net.to_bits().into(), 32) == top(ip.to_bits().into(), 32),
        (IpAddr::V6(net), IpAddr::V6(ip)) => top(net.to_bits(), 128) == top(ip.to_bits(), 128),
        _ => false,
    }
}

/// The IPv4 address that an IPv6 address represents, if it does.
fn plain(ip: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = ip else { return ip };
    let low = |at: u32| Ipv4Addr::from_bits(u32::try_from((v6.to_bits() >> at) & 0xffff_ffff).unwrap_or(0));
    match v6.segments() {
        [0, 0, 0, 0, 0, 0 | 0xffff, a, _] if a > 0 => low(0).into(),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => low(0).into(),
        [0x2002, ..] => low(80).into(),
        _ => ip,
    }
}

/// Whether it is public: no loopback, no network of an organization, no link, no service of a cloud for its machines.
fn is_public(ip: IpAddr) -> bool {
    const NOT_PUBLIC: [(Ipv4Addr, u8); 14] = [
        (Ipv4Addr::new(0, 0, 0, 0), 8),
        (Ipv4Addr::new(10, 0, 0, 0), 8),
        (Ipv4Addr::new(100, 64, 0, 0), 10),
        (Ipv4Addr::new(127, 0, 0, 0), 8),
        // Azure's, which is no private one.
        (Ipv4Addr::new(168, 63, 129, 16), 32),
        (Ipv4Addr::new(169, 254, 0, 0), 16),
        (Ipv4Addr::new(172, 16, 0, 0), 12),
        (Ipv4Addr::new(192, 0, 0, 0), 24),
        (Ipv4Addr::new(192, 0, 2, 0), 24),
        (Ipv4Addr::new(192, 168, 0, 0), 16),
        (Ipv4Addr::new(198, 18, 0, 0), 15),
        (Ipv4Addr::new(198, 51, 100, 0), 24),
        (Ipv4Addr::new(203, 0, 113, 0), 24),
        (Ipv4Addr::new(224, 0, 0, 0), 3),
    ];
    // All unicast addresses that are public are in 2000::/3.
    const PUBLIC: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);
    const EXAMPLES: (Ipv6Addr, u8) = (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32);
    match ip {
        IpAddr::V4(_) => !NOT_PUBLIC.iter().any(|(net, bits)| contains((*net).into(), *bits, ip)),
        IpAddr::V6(_) => {
            contains(PUBLIC.0.into(), PUBLIC.1, ip) && !contains(EXAMPLES.0.into(), EXAMPLES.1, ip)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_as_users_write_them() {
        let parsed = |text: &str| Address::parse(text).map(|address| (address.kind(), address.shown()));
        let is = |kind, shown: &str| Ok((kind, shown.to_owned()));
        assert_eq!(parsed("https://x.example/a/b?c"), is("json", "https://x.example/…"));
        assert_eq!(
            parsed("slack:https://hooks.slack.com/services/T/B/x"),
            is("slack", "https://hooks.slack.com/…")
        );
        assert_eq!(parsed("teams:http://x.example:81/"), is("teams", "http://x.example:81/…"));
        assert_eq!(parsed("mailto:anna@x.example"), is("mail", "anna@x.example"));
        assert_eq!(parsed("anna@x.example"), is("mail", "anna@x.example"));
        for wrong in [
            "",
            "x",
            "ftp://x.example",
            "file:///etc/passwd",
            "slack:x",
            "mailto:anna",
            "https://a:b@x.example/",
            "mailto:a@x.example\nBcc: b@x.example",
            "slack:mailto:a@x.example",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn addresses_that_are_not_public_are_refused() {
        let none = Allowed::default();
        let admits = |allowed: &Allowed, ip: &str| allowed.admits("x.example", ip.parse().unwrap());
        for ip in [
            "127.0.0.1",
            "127.9.9.9",
            "0.0.0.0",
            "10.1.2.3",
            "172.31.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "224.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "::127.0.0.1",
            "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::",
            "ff02::1",
        ] {
            assert!(!admits(&none, ip), "{ip}");
        }
        for ip in ["1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:1.1.1.1"] {
            assert!(admits(&none, ip), "the negative control: {ip}");
        }
        let some = Allowed::parse(&["10.1.0.0/16".into(), "::1".into(), "Chat.example".into()]).unwrap();
        assert!(admits(&some, "10.1.255.1") && admits(&some, "::1") && !admits(&some, "10.2.0.1"));
        assert!(some.admits("chat.example", "10.9.9.9".parse().unwrap()));
        assert!(admits(&Allowed::parse(&["0.0.0.0/0".into()]).unwrap(), "127.0.0.1"));
        for wrong in ["", "10.0.0.0/33", "x/8"] {
            assert!(Allowed::parse(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
    }
}
