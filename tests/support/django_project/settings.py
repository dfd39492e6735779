"""As ``startproject`` makes them, as far as the admin needs them."""

import os

SECRET_KEY = "only for tests"
DEBUG = bool(os.environ.get("SHOP_DEBUG"))
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "tests.support.django_project.urls"
USE_TZ = True
STATIC_URL = "static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "celery_locks.django",
]

MIDDLEWARE = [
    "tests.support.django_project.csp.strict",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("SHOP_DATABASE", ":memory:"),
        "TEST": {"NAME": os.environ.get("SHOP_TEST_DATABASE")},
    }
}

PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

if "SHOP_APP" in os.environ:
    CELERY_LOCKS_APP = os.environ["SHOP_APP"]
