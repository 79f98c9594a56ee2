//! Checks of certificates.

use jiff::Timestamp;
use x509_parser::pem::parse_x509_pem;

use super::facts::Facts;
use super::finding::Finding;

const DAY: i64 = 86_400;

/// Whether certificates last for some days more.
pub(crate) fn certificates(facts: &Facts, days: u16) -> Vec<Finding> {
    const CHECK: &str = "certificate";
    let mut findings = Vec::new();
    let mut ends: Vec<(String, i64)> = Vec::new();
    for (secret, end) in &facts.certificates {
        match end {
            Err(failure) => {
                findings.push(Finding::unread(CHECK, &format!("the Secret {secret}"), failure))
            }
            Ok(Some(end)) => ends.push((format!("of Secret {secret}"), end.as_second())),
            Ok(None) => {}
        }
    }
    for (pod, page) in &facts.extenders {
        let Ok(page) = page else { continue };
        for file in ["certificate", "client_ca"] {
            let label = format!("file=\"{file}\"");
            let name = "plimsoll_extender_certificate_not_after_seconds";
            if let Some(end) = page.sum(name, &[&label]) {
                ends.push((format!("in use by {pod} ({file})"), end as i64));
            }
        }
    }
    let now = facts.time().as_second();
    let mut first: Option<i64> = None;
    for (which, end) in ends {
        let left = (end - now).div_euclid(DAY);
        first = Some(first.map_or(left, |first| first.min(left)));
        let todo = if which.contains("kube-scheduler-tls") {
            "plimsoll-scheduler certificates --new, then enable on each control-plane node, which has a copy \
             (docs/certificates.md)"
        } else {
            "renew its Secret: plimsoll-scheduler certificates --new, or your issuer (docs/certificates.md)"
        };
        if end <= now {
            findings.push(Finding::fail(CHECK, format!("the certificate {which} has ended"), todo));
        } else if left < i64::from(days) {
            findings.push(Finding::warn(
                CHECK,
                format!("the certificate {which} ends in {left} days"),
                todo,
            ));
        }
    }
    match first {
        Some(first) if findings.is_empty() => {
            findings.push(Finding::ok(CHECK, format!("the first ends in {first} days")));
        }
        None if findings.is_empty() => {
            findings.push(Finding::ok(CHECK, "none: the extender speaks plain HTTP"));
        }
        _ => {}
    }
    findings
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
