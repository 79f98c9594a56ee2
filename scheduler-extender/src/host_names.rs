//! The names by which requests to the read-only port may come.
//!
//! In an operator's network others can answer for names without a dot (LLMNR, search domains) and under `.local`
//! (mDNS). So through a forwarded port, whose connections come from the pod's own address 127.0.0.1, no name of the
//! cluster is accepted.

use std::net::IpAddr;

use axum::http::uri::Authority;

/// What clusters add to the name of a Service by default.
const CLUSTER_DOMAIN: &str = ".cluster.local";

/// The names by which requests may come.
#[derive(Debug)]
pub struct HostNames {
    /// From anywhere.
    configured: Vec<String>,
    /// From other pods.
    of_service: Vec<String>,
}

impl HostNames {
    /// `service` is the whole name of this program's Service, `NAME.NAMESPACE.svc`.
    #[must_use]
    pub fn new(service: &impl AsRef<str>, configured: &[String]) -> Self {
        let name = service.as_ref();
        let mut of_service: Vec<String> =
            name.match_indices('.').map(|(end, _)| name[..end].to_owned()).collect();
        of_service.extend([name.to_owned(), format!("{name}{CLUSTER_DOMAIN}")]);
        Self { configured: configured.to_vec(), of_service }
    }

    /// Whether a request may come by this name, `is_forwarded` through a forwarded port.
    pub(crate) fn accepts(&self, host: &str, is_forwarded: bool) -> bool {
        let Some(name) = name_of(host) else { return false };
        let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
        // Browsers resolve names under `.localhost` themselves.
        let is_local = name == "localhost" || name.ends_with(".localhost");
        address.is_ok()
            || is_local
            || has(&self.configured, &name)
            || !is_forwarded && has(&self.of_service, &name)
    }

    /// Whether a page at `origin` is one of this server, which the browser reached as `host`.
    pub(crate) fn is_origin(&self, origin: &str, host: Option<&str>) -> bool {
        let Some((_, authority)) = origin.split_once("://") else { return false };
        let is_configured = name_of(authority).is_some_and(|name| has(&self.configured, &name));
        host.is_some_and(|host| authority.eq_ignore_ascii_case(host)) || is_configured
    }
}

fn has(names: &[String], name: &str) -> bool {
    names.iter().any(|own| own.eq_ignore_ascii_case(name))
}

/// The name or address of a header, without the port.
fn name_of(host: &str) -> Option<String> {
    let authority = host.parse::<Authority>().ok()?;
    Some(authority.host().trim_end_matches('.').to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_others_can_answer_for_are_accepted_only_from_pods_and_only_the_services_own() {
        let own = ["plimsoll.example.com".to_owned()];
        let names = HostNames::new(&"scheduler-extender.plimsoll.svc", &own);
        for own in [
            "127.0.0.1:19107",
            "[::1]:19107",
            "10.0.0.7",
            "localhost:8080",
            "LOCALHOST",
            "a.localhost",
            "plimsoll.example.com",
            "Plimsoll.Example.com:443",
        ] {
            assert!(names.accepts(own, true) && names.accepts(own, false), "{own}");
        }
        for of_service in [
            "scheduler-extender:19107",
            "scheduler-extender.plimsoll",
            "scheduler-extender.plimsoll.svc:19107",
            "scheduler-extender.plimsoll.svc.cluster.local.",
        ] {
            assert!(
                !names.accepts(of_service, true) && names.accepts(of_service, false),
                "{of_service}"
            );
        }
        for foreign in [
            "wpad",
            "evil.cluster.local",
            "evil.svc",
            "evil.local",
            "scheduler-extender.local",
            "cluster.local",
            "scheduler-extender.plimsoll.svc.evil.org",
            "evil.example.com",
            "plimsoll.example.com.evil.org",
            "127.0.0.1.evil.org:19107",
            "localhost.evil.org",
            "svc",
            "",
            "a b.c",
            ".",
        ] {
            assert!(!names.accepts(foreign, true) && !names.accepts(foreign, false), "{foreign}");
        }
    }
}
