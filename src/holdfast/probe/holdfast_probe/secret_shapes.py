"""Secrets that can be recognized by their format alone. docs/run_folder.md lists all of them by the names used here."""

import re

TOKENS = (
    ("Hugging Face", r"(?:hf|api_org)_[A-Za-z0-9]{20,}"),
    ("OpenAI, Anthropic, OpenRouter and DeepSeek", r"sk-(?=[A-Za-z_-]{0,80}\d)[A-Za-z0-9_-]{20,}"),
    ("Groq", r"gsk_[A-Za-z0-9]{40,}"),
    ("xAI", r"xai-[A-Za-z0-9]{40,}"),
    ("Perplexity", r"pplx-[A-Za-z0-9]{40,}"),
    ("NVIDIA", r"nvapi-[\w-]{40,}"),
    ("Replicate", r"r8_[A-Za-z0-9]{30,}"),
    ("LangSmith", r"lsv2_[a-z]{2}_[0-9a-f]{32}_[0-9a-f]{10}"),
    ("Weights & Biases (new keys)", r"wandb_v1_\w{40,}"),
    ("Pinecone", r"pcsk_\w{40,}"),
    ("GitHub", r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_\w{30,}"),
    ("GitLab", r"gl(?:pat|dt|rt|oas|soat|ptt|cbt|ft|imt|agent)-[\w-]{15,}"),
    ("Atlassian", r"AT(?:ATT|CTT|BB)[\w=-]{24,}"),
    ("AWS", r"A(?:KIA|SIA)[0-9A-Z]{16}(?![0-9A-Za-z])"),
    ("Google", r"AIza[\w-]{35}|ya29\.[\w-]{20,}|GOCSPX-[\w-]{20,}|1//0[\w-]{40,}"),
    ("Azure client secret", r"[A-Za-z0-9_~.-]{3}8Q~[\w~.-]{31,34}"),
    ("Alibaba", r"LTAI[A-Za-z0-9]{16,24}(?![0-9A-Za-z])"),
    ("DigitalOcean", r"do[opr]_v1_[0-9a-f]{64}"),
    ("Databricks", r"dapi[0-9a-f]{32}(?:-\d)?(?![0-9A-Za-z])"),
    ("Slack", r"xox[abeprs]-[\w-]{10,}|xapp-[\w-]{20,}"),
    ("Telegram bot", r"(?:bot)?\d{8,10}:AA[\w-]{33}(?![\w-])"),
    ("Discord bot", r"[MNO][\w-]{23,27}\.[\w-]{6}\.[\w-]{27,40}(?![\w-])"),
    ("Twilio", r"SK[0-9a-f]{32}(?![0-9A-Za-z])"),
    ("SendGrid", r"SG\.[\w-]{16,64}\.[\w-]{16,64}"),
    ("Mailgun", r"key-[0-9a-f]{32}(?![0-9A-Za-z])"),
    ("Brevo", r"xkeysib-[0-9a-f]{64}-\w{16}"),
    ("Stripe", r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}|whsec_[A-Za-z0-9+/]{24,}={0,2}"),
    ("Square", r"sq0[a-z]{3}-[\w-]{22,}"),
    ("Shopify", r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}"),
    ("npm", r"npm_[A-Za-z0-9]{30,}"),
    ("PyPI", r"pypi-[\w-]{40,}"),
    ("RubyGems", r"rubygems_[0-9a-f]{48}"),
    ("Docker Hub", r"dckr_(?:pat|oat)_[\w-]{20,}"),
    ("Doppler", r"dp\.(?:pt|st|ct|sa|scim|audit)\.[\w.-]{40,}"),
    ("HashiCorp Vault", r"hv[sbr]\.[\w-]{24,}"),
    ("Terraform Cloud", r"[A-Za-z0-9]{14}\.atlasv1\.[\w-]{40,}"),
    ("Pulumi", r"pul-[0-9a-f]{40}"),
    ("Grafana", r"glsa_\w{32,}|glc_[\w+/=-]{32,}"),
    ("Sentry", r"sntry[su]_[\w+/=-]{40,}"),
    ("New Relic", r"NRAK-[A-Z0-9]{27}"),
    ("Postman", r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}"),
    ("Linear", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),
    ("Notion", r"ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43}(?![0-9A-Za-z])"),
    ("Airtable", r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}"),
    ("Figma", r"figd_[\w-]{30,}"),
    ("Supabase", r"sbp_[0-9a-f]{40}|sb_secret_[\w-]{20,}"),
    ("PlanetScale", r"pscale_(?:tkn|pw|oauth)_[\w.-]{30,}"),
    ("Fly.io", r"fm[12]_[\w+/=-]{40,}"),
    ("age", r"AGE-SECRET-KEY-1[0-9A-Z]{50,}"),
)
"""The issuer of the token, and its pattern."""
OTHERS = (
    ("JSON web tokens", r"(?<![\w-])eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"),
    ("Slack webhooks", r"(?<=hooks\.slack\.com/services/)[\w/]{20,}"),
    ("Discord webhooks", r"(?<=/api/webhooks/)\d{10,24}/[\w-]{30,}"),
    (
        "private keys",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----[\s\S]*?(?:-----END [A-Z ]{0,40}PRIVATE KEY[A-Z ]{0,6}-----|\Z)",
    ),
)
SHAPES = re.compile(
    "(?<![A-Za-z0-9])(?:%s)|%s"
    % ("|".join(pattern for _, pattern in TOKENS), "|".join(pattern for _, pattern in OTHERS))
)


def looks_random(value):
    """Return True for 12 or more mixed letters and digits in a row, not for `model.layers.0.self_attn`."""
    return len(value) >= 12 and any(_is_mixed(run) for run in _RUN.findall(value[:400]))


_RUN = re.compile(r"[A-Za-z0-9]{12,}")
_CHANGES = re.compile(r"[a-z](?=[A-Z0-9])|[A-Z](?=[a-z0-9])|[0-9](?=[A-Za-z])")


def _is_mixed(run):
    return (
        any(c.isdigit() for c in run)
        and any(c.isalpha() for c in run)
        and len(_CHANGES.findall(run)) >= (3 if len(run) >= 16 else 5)
    )
