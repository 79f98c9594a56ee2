//! The parts of an X.509 certificate that rustls does not tell: the common names of its subject, and the end of its
//! validity.
//!
//! Only DER as RFC 5280 has it is read. What cannot be read has no name and no end.

use jiff::Timestamp;
use jiff::civil::{Date, Time};
use jiff::tz::TimeZone;
use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

const INTEGER: u8 = 0x02;
const OID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
/// The version of a certificate, absent in the first.
const VERSION: u8 = 0xa0;

/// The attribute of a common name: 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];

/// UTF8String, PrintableString and IA5String.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// Whether one of the names is a DNS name of the certificate, or a common name of its subject.
pub(super) fn has_a_name_of(certificate: &CertificateDer<'_>, names: &[String]) -> bool {
    let common = Fields::of(certificate).map(|fields| fields.common_names()).unwrap_or_default();
    // Wildcards are no names here: a certificate for all of a zone is not meant for one client of it.
    let parsed = EndEntityCert::try_from(certificate).ok();
    let dns_names: Vec<&str> = parsed.iter().flat_map(|it| it.valid_dns_names()).collect();
    names.iter().any(|name| {
        common.contains(&name.as_bytes())
            || dns_names.iter().any(|dns| dns.eq_ignore_ascii_case(name))
    })
}

/// When the first of the certificates of a chain ends.
pub(super) fn first_end(chain: &[CertificateDer<'_>]) -> Option<Timestamp> {
    chain.iter().filter_map(|certificate| Fields::of(certificate)?.end()).min()
}

/// The fields of a certificate that are read.
struct Fields<'d> {
    validity: &'d [u8],
    subject: &'d [u8],
}

impl<'d> Fields<'d> {
    fn of(certificate: &'d CertificateDer<'_>) -> Option<Self> {
        let (certificate, _) = expect(certificate.as_ref(), SEQUENCE)?;
        let (mut rest, _) = expect(certificate, SEQUENCE)?;
        if let Some((_, behind)) = expect(rest, VERSION) {
            rest = behind;
        }
        let (_serial, rest) = expect(rest, INTEGER)?;
        let (_algorithm, rest) = expect(rest, SEQUENCE)?;
        let (_issuer, rest) = expect(rest, SEQUENCE)?;
        let (validity, rest) = expect(rest, SEQUENCE)?;
        let (subject, _) = expect(rest, SEQUENCE)?;
        Some(Self { validity, subject })
    }

    fn common_names(&self) -> Vec<&'d [u8]> {
        elements(self.subject)
            .filter(|(tag, _)| *tag == SET)
            .flat_map(|(_, set)| elements(set))
            .filter_map(|(_, attribute)| {
                let (kind, value) = expect(attribute, OID)?;
                let (tag, text, _) = element(value)?;
                (kind == COMMON_NAME && TEXTS.contains(&tag)).then_some(text)
            })
            .collect()
    }

    fn end(&self) -> Option<Timestamp> {
        let (_, _begin, rest) = element(self.validity)?;
        let (tag, text, _) = element(rest)?;
        let text = std::str::from_utf8(text).ok()?.strip_suffix('Z')?;
        let (year, rest) = match tag {
            UTC_TIME => {
                let (digits, rest) = text.split_at_checked(2)?;
                let year: i16 = digits.parse().ok()?;
                (if year < 50 { 2000 + year } else { 1900 + year }, rest)
            }
            GENERALIZED_TIME => {
                let (year, rest) = text.split_at_checked(4)?;
                (year.parse().ok()?, rest)
            }
            _ => return None,
        };
        let date = Date::new(year, two_digits(rest, 0)?, two_digits(rest, 2)?).ok()?;
        let time =
            Time::new(two_digits(rest, 4)?, two_digits(rest, 6)?, two_digits(rest, 8)?, 0).ok()?;
        TimeZone::UTC.to_timestamp(date.to_datetime(time)).ok()
    }
}

fn two_digits(text: &str, at: usize) -> Option<i8> {
    text.get(at..at + 2)?.parse().ok()
}

/// The content of the first element, which must have this tag, and what follows.
fn expect(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (found, content, rest) = element(der)?;
    (found == tag).then_some((content, rest))
}

/// The elements, each with its tag and content, up to the first that cannot be read.
fn elements(mut der: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let (tag, content, rest) = element(der)?;
        der = rest;
        Some((tag, content))
    })
}

/// The tag and the content of the first element, and what follows.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, rest) = der.split_first()?;
    let (first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(*first), rest),
        0x81..=0x83 => {
            let (digits, rest) = rest.split_at_checked(usize::from(first & 0x0f))?;
            (digits.iter().fold(0, |length, digit| (length << 8) | usize::from(*digit)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    Some((*tag, content, rest))
}

#[cfg(test)]
mod tests {
    use support::authority::Authority;

    use super::*;

    #[test]
    fn names_and_end_of_a_certificate_are_read() {
        let authority = Authority::new();
        let signed = authority.sign_as("system:kube-scheduler", "scheduler.example");
        let der = signed.certificate.der();
        let has = |name: &str| has_a_name_of(der, &[name.to_owned()]);
        assert!(has("system:kube-scheduler") && has("scheduler.example"));
        assert!(!has("kube-scheduler") && !has("example") && !has("") && !has("127.0.0.1"));
        assert!(has_a_name_of(der, &["x".to_owned(), "scheduler.example".to_owned()]));
        assert!(!has_a_name_of(der, &[]));
        // As rcgen's default has it.
        assert_eq!(
            first_end(std::slice::from_ref(der)),
            Some("4096-01-01T00:00:00Z".parse().unwrap())
        );
        let soon = authority.sign_until("a.example", 2030);
        let both = [der.clone(), soon.certificate.der().clone()];
        assert_eq!(first_end(&both), Some("2030-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(first_end(&[]), None);
    }

    #[test]
    fn what_is_no_certificate_has_neither_names_nor_an_end() {
        let authority = Authority::new();
        let der = authority.sign_as("name", "name").certificate.der().to_vec();
        for length in 0..der.len() {
            let cut = CertificateDer::from(der[..length].to_vec());
            assert!(!has_a_name_of(&cut, &["name".to_owned()]) && first_end(&[cut]).is_none());
        }
        for at in 0..der.len() {
            let mut broken = der.clone();
            broken[at] ^= 0xff;
            // It ends without a panic.
            let _ = first_end(&[CertificateDer::from(broken.clone())]);
            let _ = has_a_name_of(&CertificateDer::from(broken), &["name".to_owned()]);
        }
    }
}
