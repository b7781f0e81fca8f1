//! Lists a provider's models, page by page, bounded in pages, bytes and time, because a user waits for it.

use std::time::Duration;

use reqwest::Url;
use serde_json::Value;
use tokio::time::timeout;

use super::failure::ErrorMapper;
use super::{Remote, Wire, unusable};
use crate::agent::model::Error;

const MOST_PAGES: usize = 20;
/// Models per page: the most that Anthropic and Google allow.
const PAGE: &str = "1000";
/// Of all pages together.
const MOST_BYTES: usize = 8 << 20;
/// For all pages together.
const LONGEST: Duration = Duration::from_secs(10);

/// The names of a provider's models.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelList {
    pub names: Vec<String>,
    /// The list was longer than we read.
    pub is_cut: bool,
}

/// One page, and the cursor of the next.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    names: Vec<String>,
    next: Option<String>,
}

impl Remote {
    /// The names of the models it offers.
    pub async fn models(&self) -> Result<ModelList, Error> {
        let all = timeout(LONGEST, self.all_pages()).await;
        all.map_err(|_| Error::Silent(LONGEST))?
    }

    async fn all_pages(&self) -> Result<ModelList, Error> {
        let mut list = ModelList::default();
        let (mut next, mut room) = (None, MOST_BYTES);
        for _ in 0..MOST_PAGES {
            let url = address(&self.base, self.wire, next.as_deref());
            let url = url.ok_or_else(|| unusable("it has no address"))?;
            let request = self.client.get(url).headers(self.headers.clone());
            let mut response = self.succeed(request).await?;
            let body = self.read(&mut response, room).await?;
            room -= body.len();
            let page = Page::read(self.wire, &body).ok_or_else(ErrorMapper::unreadable)?;
            list.names.extend(page.names);
            match page.next {
                None => return Ok(list),
                // The same cursor again would loop for ever.
                same if same == next => break,
                other => next = other,
            }
        }
        Ok(ModelList { is_cut: true, ..list })
    }
}

fn address(base: &Url, wire: Wire, next: Option<&str>) -> Option<Url> {
    let mut url = base.join("models").ok()?;
    let (size, after) = match wire {
        Wire::Anthropic => ("limit", "after_id"),
        Wire::Gemini => ("pageSize", "pageToken"),
        // OpenAI has no pages.
        Wire::OpenAi | Wire::Responses => return Some(url),
    };
    url.query_pairs_mut().append_pair(size, PAGE);
    if let Some(next) = next {
        url.query_pairs_mut().append_pair(after, next);
    }
    Some(url)
}

impl Page {
    fn read(wire: Wire, body: &[u8]) -> Option<Page> {
        let list: Value = serde_json::from_slice(body).ok()?;
        let models = list.get("data").or_else(|| list.get("models"))?.as_array()?;
        let name = |model: &Value| {
            let name = model.get("id").or_else(|| model.get("name"))?.as_str()?;
            Some(name.trim_start_matches("models/").to_owned())
        };
        let next = match wire {
            Wire::Anthropic if list["has_more"] == true => list["last_id"].as_str(),
            Wire::Gemini => list["nextPageToken"].as_str(),
            Wire::Anthropic | Wire::OpenAi | Wire::Responses => None,
        };
        let next = next.filter(|next| !next.is_empty()).map(str::to_owned);
        Some(Page { names: models.iter().filter_map(name).collect(), next })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found_where_each_format_puts_it() {
        let base = Url::parse("http://127.0.0.1:1/v1/").unwrap();
        let check = |wire: Wire, body: &str, next: Option<&str>, address_of_next: &str| {
            let page = Page::read(wire, body.as_bytes()).unwrap();
            let expected = Page { names: vec!["a".into()], next: next.map(str::to_owned) };
            assert_eq!(page, expected, "{body}");
            let address = address(&base, wire, next).unwrap();
            assert_eq!(address.as_str(), format!("http://127.0.0.1:1/v1/models{address_of_next}"));
        };
        let data = r#"{"data": [{"id": "a"}], "has_more": true, "last_id": "a b"}"#;
        check(Wire::Anthropic, data, Some("a b"), "?limit=1000&after_id=a+b");
        check(Wire::OpenAi, data, None, "");
        check(Wire::Responses, data, None, "");
        let last = r#"{"data": [{"id": "a"}], "has_more": false, "last_id": "a"}"#;
        check(Wire::Anthropic, last, None, "?limit=1000");
        let models = r#"{"models": [{"name": "models/a"}], "nextPageToken": "x&y"}"#;
        check(Wire::Gemini, models, Some("x&y"), "?pageSize=1000&pageToken=x%26y");
        let last = r#"{"models": [{"name": "models/a"}], "nextPageToken": ""}"#;
        check(Wire::Gemini, last, None, "?pageSize=1000");
        for unreadable in ["", "[]", r#"{"data": 1}"#] {
            assert_eq!(Page::read(Wire::OpenAi, unreadable.as_bytes()), None);
        }
    }
}
