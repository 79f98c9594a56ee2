//! Checks of certificates.

use jiff::Timestamp;
use x509_parser::pem::parse_x509_pem;

use super::facts::Facts;
use super::finding::Findings;
use super::programs::WORKLOADS;
use crate::cluster_access::{CLIENT_SECRET, EXTENDER};

const DAY: i64 = 86_400;

/// When a certificate ends.
struct End {
    /// Which it is: `of Secret x`.
    which: String,
    time: Timestamp,
    /// Whether the extender serves it, or checks clients by it.
    is_extenders: bool,
}

/// Whether certificates last for some days more.
pub(crate) fn certificates(facts: &Facts, found: &mut Findings) {
    let extender = found.read(WORKLOADS, facts.workload(EXTENDER));
    let tls = extender.flatten().and_then(|it| it.setting("PLIMSOLL_TLS_CERT_FILE"));
    let speaks_tls = tls.is_some();
    let ends = of_secrets(facts, found);
    // Where the extender is not known to be there, it may tell all the same.
    let is_told = (speaks_tls || extender.is_none())
        && !found.told(EXTENDER, &facts.extenders).conditions.is_empty();
    for end in &ends {
        judge(end, facts, found);
    }
    if speaks_tls && !is_told && !ends.iter().any(|end| end.is_extenders) {
        return found.unknown(
            "not checked: the extender speaks TLS, and the end of its certificate is not known",
            "kubectl plimsoll doctor --only certificate also looks at Secrets; see the check `extender`",
        );
    }
    match ends.iter().map(|end| days_left(end, facts)).min() {
        Some(first) => found.ok_if_nothing(format!("the first ends in {first} days")),
        None if is_told => found.ok_if_nothing("those in use last"),
        None if extender.is_some_and(|extender| extender.is_some()) => {
            found.ok_if_nothing("none: the extender runs without --tls-cert-file, over plain HTTP");
        }
        None => found.does_not_apply("no extender is installed"),
    }
}

/// The certificates in Secrets. A Secret that is missing is found.
fn of_secrets(facts: &Facts, found: &mut Findings) -> Vec<End> {
    let mut ends = Vec::new();
    for secret in facts.certificates.iter().flatten() {
        let mut which = format!("of Secret {}", secret.name);
        if secret.namespace != facts.namespace {
            which += &format!(" in {}", secret.namespace);
        }
        match found.read(&format!("the certificate {which}"), secret.end.as_ref()) {
            Some(Some(time)) => {
                ends.push(End { which, time: *time, is_extenders: secret.of == EXTENDER });
            }
            Some(None) if !secret.of.is_empty() => found.fail(
                format!(
                    "there is no certificate {which}, without which no pod of {} starts",
                    secret.of
                ),
                "make it: plimsoll scheduler certificates, or your issuer (docs/certificates.md)",
            ),
            Some(None) | None => {}
        }
    }
    ends
}

/// Finds a certificate that has ended, or ends soon.
fn judge(end: &End, facts: &Facts, found: &mut Findings) {
    let which = &end.which;
    let todo = if which.contains(CLIENT_SECRET) {
        "plimsoll scheduler certificates --new, then enable on each control-plane node, which has a copy \
         (docs/certificates.md)"
    } else {
        "renew its Secret: plimsoll scheduler certificates --new, or your issuer (docs/certificates.md)"
    };
    let left = days_left(end, facts);
    if end.time <= facts.time() {
        found.fail(format!("the certificate {which} has ended"), todo);
    } else if left < i64::from(facts.certificate_days) {
        found.warn(format!("the certificate {which} ends in {left} days"), todo);
    }
}

/// Whole days until it ends. For these, this machine's time will do where the API server's is not known.
fn days_left(end: &End, facts: &Facts) -> i64 {
    (end.time.as_second() - facts.time().as_second()).div_euclid(DAY)
}

/// When the first certificate of a PEM text ends; `None` if there is none in it.
pub(crate) fn end_of(pem: &[u8]) -> Option<Timestamp> {
    let (_, pem) = parse_x509_pem(pem).ok()?;
    let certificate = pem.parse_x509().ok()?;
    Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_read_from_the_pem_text() {
        let mut params = rcgen::CertificateParams::new(vec!["x".to_owned()]).unwrap();
        params.not_after = rcgen::date_time_ymd(2027, 3, 4);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        assert_eq!(end_of(pem.as_bytes()).unwrap().to_string(), "2027-03-04T00:00:00Z");
        assert_eq!(end_of(b"no certificate"), None);
    }
}
