//! The names in an expression of PromQL: metrics, the labels of their selectors, and labels that are grouped by. Not a
//! parser: Prometheus itself checks the syntax.

use std::collections::BTreeSet;

/// What an expression names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Names {
    /// Each metric with the labels that its selector compares.
    pub(super) selectors: Vec<(String, Vec<String>)>,
    /// The labels after `by`, `without`, `on`, `ignoring`, `group_left` and `group_right`.
    pub(super) grouped: BTreeSet<String>,
}

/// Words before a list of labels.
const BEFORE_LABELS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
/// Words that stand where a metric could.
const WORDS: [&str; 7] = ["and", "or", "unless", "offset", "bool", "inf", "nan"];

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token {
    Word(String),
    Text(String),
    Mark(char),
}

fn tokens(expression: &str) -> Vec<Token> {
    let mut found = Vec::new();
    let mut chars = expression.chars().peekable();
    while let Some(first) = chars.next() {
        if first == '"' {
            let text: String = chars.by_ref().take_while(|c| *c != '"').collect();
            found.push(Token::Text(text));
        } else if first.is_alphanumeric() || matches!(first, '_' | ':' | '$' | '.') {
            let mut word = first.to_string();
            while let Some(next) = chars.next_if(|c| c.is_alphanumeric() || "_:$.".contains(*c)) {
                word.push(next);
            }
            found.push(Token::Word(word));
        } else if !first.is_whitespace() {
            found.push(Token::Mark(first));
        }
    }
    found
}

/// Whether a word can name a metric, and is no number, duration or variable of Grafana.
fn is_name(word: &str) -> bool {
    let start = word.chars().next().unwrap_or_default();
    (start.is_alphabetic() || start == '_') && !WORDS.contains(&word)
}

/// Whether the word before this token is a function or an aggregation.
fn is_applied(next: Option<&Token>) -> bool {
    match next {
        Some(Token::Mark(mark)) => *mark == '(',
        Some(Token::Word(word)) => ["by", "without"].contains(&word.as_str()),
        _ => false,
    }
}

/// The names of an expression.
pub(super) fn names(expression: &str) -> Names {
    let tokens = tokens(expression);
    let mut names = Names::default();
    let mut position = 0;
    while let Some(token) = tokens.get(position) {
        position += 1;
        let next = tokens.get(position);
        match token {
            Token::Word(word) if BEFORE_LABELS.contains(&word.as_str()) => {
                let list = tokens[position..].iter().take_while(|it| **it != Token::Mark(')'));
                let list: Vec<&Token> = list.collect();
                position += list.len();
                names.grouped.extend(list.into_iter().filter_map(word_of));
            }
            Token::Word(_) if is_applied(next) => {}
            Token::Word(word) if is_name(word) => names.selectors.push((word.clone(), Vec::new())),
            Token::Mark('[') => {
                position +=
                    tokens[position..].iter().take_while(|it| **it != Token::Mark(']')).count();
            }
            Token::Mark('{') => {
                let inside: Vec<Token> = tokens[position..]
                    .iter()
                    .take_while(|it| **it != Token::Mark('}'))
                    .cloned()
                    .collect();
                let named = matches!(tokens.get(position.wrapping_sub(2)), Some(Token::Word(word)) if is_name(word));
                position += inside.len();
                select(&mut names, &inside, named);
            }
            _ => {}
        }
    }
    names
}

fn word_of(token: &Token) -> Option<String> {
    if let Token::Word(word) = token { Some(word.clone()) } else { None }
}

/// Adds a selector: to the metric before it, or to each one of `__name__`.
fn select(names: &mut Names, inside: &[Token], named: bool) {
    let labels: Vec<String> = inside.iter().filter_map(word_of).collect();
    if named {
        let last = names.selectors.last_mut().expect("a metric before its selector");
        last.1 = labels;
        return;
    }
    let Some(position) = inside.iter().position(|it| *it == Token::Word("__name__".to_owned()))
    else {
        panic!("a selector without a name: {inside:?}");
    };
    let Some(Token::Text(pattern)) =
        inside[position..].iter().find(|it| matches!(it, Token::Text(_)))
    else {
        panic!("a name without a text: {inside:?}");
    };
    let labels: Vec<String> = labels.into_iter().filter(|label| label != "__name__").collect();
    for name in alternatives(pattern) {
        names.selectors.push((name, labels.clone()));
    }
}

/// What a pattern with at most one group matches: `a_(b|c)_d`.
fn alternatives(pattern: &str) -> Vec<String> {
    let Some((before, rest)) = pattern.split_once('(') else { return vec![pattern.to_owned()] };
    let (group, after) = rest.split_once(')').expect("the end of the group");
    group.split('|').map(|part| format!("{before}{part}{after}")).collect()
}
