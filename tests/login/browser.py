"""As much of a browser as a login needs: cookies, redirects, forms."""

import html.parser
import http.cookiejar
import urllib.error
import urllib.parse
import urllib.request


class Forms(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.action, self.fields = None, {}

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes.get("action", "")
        if tag in ("input", "button") and attributes.get("name") and self.action is not None:
            self.fields[attributes["name"]] = attributes.get("value", "")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


class Browser:
    def __init__(self):
        self.cookies = http.cookiejar.CookieJar()
        processor = urllib.request.HTTPCookieProcessor(self.cookies)
        self.opener = urllib.request.build_opener(processor, NoRedirect())

    def get(self, url, form=None, follow=True, method=None):
        """Status, address and text; goes where it is sent."""
        for _ in range(20):
            data = None if form is None else urllib.parse.urlencode(form).encode()
            request = urllib.request.Request(url, data=data, method=method)
            try:
                answer = self.opener.open(request, timeout=120)
            except urllib.error.HTTPError as error:
                answer = error
            place = answer.headers.get("Location")
            if not place or not follow:
                return answer.status, place or url, answer.read().decode(), answer.headers
            url, form, method = urllib.parse.urljoin(url, place), None, None
        raise AssertionError(f"too many redirects, the last to {url}")

    def log_in(self, url, person, until):
        """Answers the provider's forms as this person, until the address begins with `until` or the text has it as a title."""
        status, url, text, headers = self.get(url)
        for _ in range(8):
            if url.startswith(until) or f"<title>{until}</title>" in text:
                return status, url, text, headers
            forms = Forms()
            forms.feed(text)
            assert forms.action is not None, f"{status} {url}: {text}"
            fields = {name: value for name, value in forms.fields.items() if name != "abort"}
            if "login" in fields:
                fields |= {"login": person, "password": "any"}
            status, url, text, headers = self.get(urllib.parse.urljoin(url, forms.action), fields)
        raise AssertionError(f"the login did not end: {status} {url}: {text}")
