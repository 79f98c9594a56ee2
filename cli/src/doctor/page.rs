//! A page of metrics in Prometheus's text form.

/// The samples of a page.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Page(Vec<Sample>);

#[derive(Debug, Clone, PartialEq)]
struct Sample {
    name: String,
    /// As they stand between the braces.
    labels: String,
    value: f64,
}

impl Page {
    /// Reads a page; lines that are no samples are left out.
    pub(crate) fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(sample).collect())
    }

    /// The sum of the samples of this name that have each of these labels, as `outcome="ok"`; `None` if there is none.
    pub(crate) fn sum(&self, name: &str, labels: &[&str]) -> Option<f64> {
        let fits = |sample: &&Sample| {
            sample.name == name && labels.iter().all(|label| sample.labels.contains(label))
        };
        self.0.iter().filter(fits).map(|sample| sample.value).reduce(|sum, value| sum + value)
    }

    /// The value of a label of the first sample of this name.
    pub(crate) fn label(&self, name: &str, label: &str) -> Option<&str> {
        let sample = self.0.iter().find(|sample| sample.name == name)?;
        let rest = sample.labels.split(&format!("{label}=\"")).nth(1)?;
        rest.split('"').next()
    }
}

fn sample(line: &str) -> Option<Sample> {
    if line.starts_with('#') {
        return None;
    }
    let (before, value) = line.trim().rsplit_once(' ')?;
    let (name, labels) = match before.split_once('{') {
        Some((name, labels)) => (name, labels.strip_suffix('}')?),
        None => (before, ""),
    };
    Some(Sample { name: name.to_owned(), labels: labels.to_owned(), value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_summed_by_name_and_labels() {
        let page = Page::parse(
            "# HELP a b\na{verb=\"filter\",outcome=\"ok\"} 3\na{verb=\"filter\",outcome=\"error\"} 2\nb 1.5\nc{version=\"0.1\"} 1\n",
        );
        assert_eq!(page.sum("a", &[]), Some(5.0));
        assert_eq!(page.sum("a", &["outcome=\"ok\""]), Some(3.0));
        assert_eq!((page.sum("b", &[]), page.sum("d", &[])), (Some(1.5), None));
        assert_eq!(page.label("c", "version"), Some("0.1"));
    }
}
