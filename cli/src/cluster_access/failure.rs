//! Why kubectl failed, and what to do about it.

use std::fmt;

/// Why a call of kubectl failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// There is no kubectl on the PATH.
    NoKubectl,
    /// kubectl does not know a cluster, or does not reach it: its own message.
    NoCluster(String),
    /// The API server refuses it: its message.
    Forbidden(String),
    /// There is no such object, or no such kind: the API server's message.
    NotFound(String),
    /// The object has changed since it was read: the API server's message.
    Conflict(String),
    /// Anything else: kubectl's message, or what is wrong with its answer.
    Other(String),
}

impl Failure {
    /// By what kubectl wrote on its standard error.
    pub(crate) fn of_message(message: &str) -> Self {
        // This command writes `error:` before it.
        let said = message.trim();
        let text = said.strip_prefix("error: ").unwrap_or(said).to_owned();
        let says = |part: &str| message.contains(part);
        if says("(Forbidden)") || says("is forbidden") || says("cannot create resource") {
            Self::Forbidden(text)
        } else if says("(NotFound)")
            || says("\" not found")
            || says("the server doesn't have a resource type")
        {
            Self::NotFound(text)
        } else if says("(Conflict)") {
            Self::Conflict(text)
        } else if says("current-context is not set")
            || says("no configuration has been provided")
            || says("context was not found")
            || says("error: context ") && says("does not exist")
            || says("was refused - did you specify the right host or port")
            || says("Unable to connect to the server")
        {
            Self::NoCluster(text)
        } else {
            Self::Other(text)
        }
    }
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKubectl => f.write_str(
                "kubectl is not on the PATH, and plimsoll reaches the cluster by it: install it \
                 (https://kubernetes.io/docs/tasks/tools/); commands with --extender can do without, given its address",
            ),
            Self::NoCluster(message) => write!(
                f,
                "{message}\nkubectl reaches no cluster: try `kubectl get nodes`; choose a context with --context \
                 (`kubectl config get-contexts` lists them) or a file with --kubeconfig"
            ),
            Self::Forbidden(message) => match grant(message) {
                Some(grant) => write!(f, "{message}\nTo allow it:\n{grant}"),
                None => f.write_str(message),
            },
            Self::NotFound(message) | Self::Conflict(message) | Self::Other(message) => f.write_str(message),
        }
    }
}

/// What grants the right that an API server's message says is missing, as commands of kubectl.
fn grant(message: &str) -> Option<String> {
    let user = quoted(message, "User ")?;
    let verb = message.split("cannot ").nth(1)?.split(' ').next()?;
    let group = quoted(message, "API group ").unwrap_or_default();
    let mut of = with_group(quoted(message, "resource ")?, group);
    let mut role = format!("plimsoll-{verb}-{}", of.replace(['/', '.'], "-"));
    // Of Secrets, the one alone that is asked for.
    if let Some(name) = quoted(message, "secrets ").filter(|_| of == "secrets") {
        role += &format!("-{name}");
        of += &format!(" --resource-name={name}");
    }
    let subject = match user.strip_prefix("system:serviceaccount:") {
        Some(account) => format!("--serviceaccount={account}"),
        None => format!("--user={user}"),
    };
    Some(match quoted(message, "in the namespace ") {
        Some(namespace) => format!(
            "  kubectl --namespace {namespace} create role {role} --verb={verb} --resource={of}\n  \
             kubectl --namespace {namespace} create rolebinding {role} --role={role} {subject}"
        ),
        None => format!(
            "  kubectl create clusterrole {role} --verb={verb} --resource={of}\n  \
             kubectl create clusterrolebinding {role} --clusterrole={role} {subject}"
        ),
    })
}

/// As `kubectl create role --resource` takes it: the group stands behind the resource and before the subresource.
fn with_group(resource: &str, group: &str) -> String {
    match (group, resource.split_once('/')) {
        ("", _) => resource.to_owned(),
        (group, Some((resource, sub))) => format!("{resource}.{group}/{sub}"),
        (group, None) => format!("{resource}.{group}"),
    }
}

/// The text in quotes behind these words.
fn quoted<'a>(message: &'a str, before: &str) -> Option<&'a str> {
    let rest = message.split(before).nth(1)?.strip_prefix('"')?;
    rest.split('"').next().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORWARD: &str = r#"error: error upgrading connection: pods "x" is forbidden: User "jane" cannot create resource "pods/portforward" in API group "" in the namespace "plimsoll""#;

    #[test]
    fn a_missing_right_is_told_with_the_commands_that_grant_it() {
        let failure = Failure::of_message(FORWARD);
        assert!(matches!(failure, Failure::Forbidden(_)));
        let text = failure.to_string();
        assert!(
            text.ends_with(
                "To allow it:\n  kubectl --namespace plimsoll create role plimsoll-create-pods-portforward \
                 --verb=create --resource=pods/portforward\n  kubectl --namespace plimsoll create rolebinding \
                 plimsoll-create-pods-portforward --role=plimsoll-create-pods-portforward --user=jane"
            ),
            "{text}"
        );
    }

    #[test]
    fn a_right_of_the_whole_cluster_is_granted_by_a_cluster_role_to_an_account() {
        let text = grant(
            r#"resourceslices.resource.k8s.io is forbidden: User "system:serviceaccount:a:b" cannot list resource "resourceslices" in API group "resource.k8s.io" at the cluster scope"#,
        );
        let text = text.unwrap();
        assert!(text.contains("--verb=list --resource=resourceslices.resource.k8s.io"), "{text}");
        assert!(text.ends_with("--serviceaccount=a:b"), "{text}");
    }

    #[test]
    fn the_right_to_read_a_secret_is_that_of_this_one_alone() {
        let text = grant(
            r#"secrets "exporter-tls" is forbidden: User "jane" cannot get resource "secrets" in API group "" in the namespace "plimsoll""#,
        );
        let text = text.unwrap();
        assert!(
            text.contains("create role plimsoll-get-secrets-exporter-tls --verb=get --resource=secrets --resource-name=exporter-tls\n"),
            "{text}"
        );
    }

    #[test]
    fn a_login_program_that_is_missing_is_no_missing_object() {
        let login =
            "Unable to connect to the server: getting credentials: exec: executable aws not found";
        assert!(matches!(Failure::of_message(login), Failure::NoCluster(_)));
        let object = "Error from server (NotFound): pods \"x\" not found";
        assert!(matches!(Failure::of_message(object), Failure::NotFound(_)));
        let target = "error: services \"x\" not found";
        assert!(matches!(Failure::of_message(target), Failure::NotFound(_)));
    }

    #[test]
    fn a_kubelet_that_does_not_answer_is_no_missing_cluster() {
        let kubelet = "error: error upgrading connection: error dialing backend: dial tcp 10.0.0.4:10250: i/o timeout";
        assert!(matches!(Failure::of_message(kubelet), Failure::Other(_)));
        let server = "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout";
        assert!(matches!(Failure::of_message(server), Failure::NoCluster(_)));
    }

    #[test]
    fn without_a_context_it_says_how_to_choose_one() {
        for message in [
            "error: current-context is not set",
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "error: context \"east\" does not exist",
        ] {
            assert!(Failure::of_message(message).to_string().contains("--context"), "{message}");
        }
    }
}
